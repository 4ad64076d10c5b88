"""The pointing game on photos with masks: is the maximum of a saliency map on a car?

    python benchmarks/pointing.py CAMVID --work cars --json pointing.json
    python benchmarks/pointing.py CAMVID --work cars --run cars/run --methods relevance,rise

CAMVID is a folder of the road scenes (train, trainannot, val, valannot, test, testannot). Windows of 120 x 120 pixels
below the horizon become images of two classes: `car`, with 5 to 50 % of the pixels on cars, and as many of `none`,
without any car. Without --run, a small ViT is trained on them at 64 x 64 pixels, and all supported methods are
evaluated except RISE, which takes longer than all others together. The test part is another drive and the later frames
of a training drive. Every test window of a car that is classified correctly is explained; a hit is a maximum inside the
mask, which is not used in training. `random` is the hit rate of a random point, `centre` that of the centre.
"""

import argparse
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from vitrail.explain.methods.saliency import methods, saliency
from vitrail.explain.pictures import read_pictures
from vitrail.explain.scoring.faithfulness import baselines, pointing
from vitrail.report import Facts, Report, Table, Value
from vitrail.runs.trained import open_model

SEED = 0
CAR = 8  # among the classes of the masks
SIDE = 120  # pixels of a window
FEW, MANY = 0.05, 0.5  # the share of cars in a window
RECIPE: dict[str, Any] = {
    "model": "vit_tiny_patch16",
    "options": {"image_size": 64, "patch": {"kind": "conv", "halvings": 3}, "dim": 64, "depth": 3, "num_heads": 4},
    "epochs": 8,
    "batch_size": 64,
    "optimiser": {"lr": 2e-3, "weight_decay": 0.05},
    "schedule": {"warmup_epochs": 1, "final": 0.01},
    "augment": {"crop": "resized", "scale": (0.6, 1.0), "colour": 0.2},
    "task": {"label_smoothing": 0.1},
    "ema": 0.99,
    "precision": "float32",
    "eval_every": 2,
    "keep": 1,
}


def windows(mask: np.ndarray, step: int) -> list[tuple[int, int]]:
    """The upper left corners of windows below the upper third of a frame."""
    height, width = mask.shape
    return [
        (top, left) for top in range(height // 3, height - SIDE + 1, step) for left in range(0, width - SIDE + 1, step)
    ]


def cut(frames: Path, masks: Path, out: Path, part: str, step: int) -> int:
    """Writes the windows of a part as PNG, `tiles/part/class`, and masks of cars, `masks/part`; how many of a class."""
    found: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = {"car": [], "none": []}
    for file in sorted(frames.iterdir()):
        photo = np.asarray(Image.open(file).convert("RGB"))
        cars = np.asarray(Image.open((masks / file.name).with_suffix(".png"))) == CAR
        for top, left in windows(cars, step):
            place = (slice(top, top + SIDE), slice(left, left + SIDE))
            share = cars[place].mean()
            if share == 0 or FEW <= share <= MANY:
                name = f"{file.stem}-{top}-{left}.png"
                found["car" if share else "none"].append((name, photo[place], cars[place]))
    count = min(map(len, found.values()))
    for kind, some in found.items():
        tiles, known = out / "tiles" / part / kind, out / "masks" / part
        tiles.mkdir(parents=True, exist_ok=True)
        known.mkdir(parents=True, exist_ok=True)
        for number in np.random.default_rng(SEED).permutation(len(some))[:count]:
            name, pixels, mask = some[number]
            Image.fromarray(pixels).save(tiles / name)
            if kind == "car":
                Image.fromarray(mask.astype(np.uint8) * 255).save(known / name)
    return count


def judged(run: str, work: Path, names: list[str] | None) -> tuple[Table, dict[str, Value]]:
    """How often each method points at a car, over the test windows of cars that the model knows for such."""
    trained = open_model(run)
    model = trained.backbone
    files = sorted((work / "tiles" / "test" / "car").iterdir())
    read, _ = read_pictures(files, trained.preprocess, masks=work / "masks" / "test")
    images = trained.preprocess.normalise(torch.stack([one.pixels for one in read]))
    masks = torch.stack([one.mask for one in read if one.mask is not None])
    car = trained.task.output_names.index("car")
    with torch.no_grad():
        known = torch.cat([model(some) for some in images.split(256)]).argmax(dim=1) == car
    images, masks = images[known], masks[known]
    rows: list[dict[str, Value]] = []
    for name in names or [name for name in methods(model) if name != "rise"]:
        start = time.perf_counter()
        maps = saliency(model, images, name, car)
        taken = 1000 * (time.perf_counter() - start) / len(images)
        rows.append(row(name, pointing(maps, masks)) | {"ms an image": round(taken, 2)})
    rows.sort(key=lambda one: -float(one["hits"] or 0))
    rows.append({"method": "random", "hits": masks.float().mean().item()})
    rows.append(row("centre", pointing(baselines(images)["centre"], masks)))
    columns = {"method": "", "hits": "share", "95 %, ±": "share", "ms an image": ""}
    return Table("Pointing game", columns, rows), {"test windows of cars": len(files), "known for such": len(images)}


def row(name: str, hits: Tensor) -> dict[str, Value]:
    """The share of hits, and half of its 95 % interval."""
    share = hits.float().mean().item()
    return {"method": name, "hits": share, "95 %, ±": 1.96 * (share * (1 - share) / len(hits)) ** 0.5}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("camvid", type=Path)
    options.add_argument("--work", type=Path, required=True, help="where windows, masks and the run go")
    options.add_argument("--run", help="a run that is there already")
    options.add_argument("--methods", help="names with commas (default: all but rise)")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    if not (chosen.work / "tiles").exists():
        for part, step in (("train", SIDE // 2), ("val", SIDE), ("test", SIDE)):
            cut(chosen.camvid / part, chosen.camvid / f"{part}annot", chosen.work, part, step)
    run = chosen.run or str(chosen.work / "run")
    if chosen.run is None:
        vitrail.train(chosen.work / "tiles", recipe=RECIPE, folder=run)
    table, facts = judged(run, chosen.work, chosen.methods.split(",") if chosen.methods else None)
    setting = {"run": run} | facts | {"hardware": platform.machine(), "torch": torch.__version__, "seed": SEED}
    report = Report("Does the highest point lie on a car?", (Facts("Setting", setting), table))
    report.print()
    if chosen.json:
        report.to_json(chosen.json)


if __name__ == "__main__":
    main()
