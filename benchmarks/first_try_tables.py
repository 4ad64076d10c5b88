"""Tables of numbers and of labels from BCCD and CamVid, and linear models of scikit-learn on them.

    python benchmarks/first_try_tables.py BCCD CAMVID TABLES     # needs scikit-learn and scikit-image
    vitrail train TABLES/cells.csv                               # and shares.csv, present.csv

BCCD has Annotations, JPEGImages and ImageSets, CAMVID train, trainannot, val ... Parts are those of the sets.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

CLASSES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"]
SHARES = ("sky", "building", "road", "tree", "car")
LABELS = ("pole", "sign", "fence", "pedestrian", "bicyclist", "car")
PARTS = ("train", "val", "test")
PRESENT = 0.002  # of the pixels of a frame


def cells(bccd: Path) -> Iterator[list[Any]]:
    """Photos with their number of red cells."""
    for part in PARTS:
        for name in (bccd / f"ImageSets/Main/{part}.txt").read_text().split():
            boxes = ElementTree.parse(bccd / f"Annotations/{name}.xml").iter("object")
            yield [bccd / f"JPEGImages/{name}.jpg", sum(box.findtext("name") == "RBC" for box in boxes), part]


def frames(camvid: Path) -> Iterator[tuple[Path, dict[str, float], str]]:
    """Frames with the share of each class."""
    for part in PARTS:
        for path in sorted((camvid / part).iterdir()):
            mask = np.asarray(Image.open(next((camvid / f"{part}annot").glob(f"{path.stem}.*"))))
            yield path, {name: float((mask == index).mean()) for index, name in enumerate(CLASSES)}, part


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def tables(bccd: Path, camvid: Path, out: Path) -> None:
    """Writes the three tables."""
    out.mkdir(parents=True, exist_ok=True)
    write(out / "cells.csv", ["path", "red", "split"], list(cells(bccd.resolve())))
    seen = list(frames(camvid.resolve()))
    shares = [[path, *(f"{100 * share[name]:.2f}" for name in SHARES), part] for path, share, part in seen]
    write(out / "shares.csv", ["path", *SHARES, "split"], shares)
    present = [[path, "|".join(name for name in LABELS if share[name] > PRESENT), part] for path, share, part in seen]
    write(out / "present.csv", ["path", "labels", "split"], present)


def features(path: str, kind: str) -> Any:
    """Pixels of 32 x 32, or gradients of 64 x 64."""
    from skimage.feature import hog

    image = Image.open(path)
    if kind == "pixels":
        return np.asarray(image.convert("RGB").resize((32, 32))).ravel() / 255
    return hog(np.asarray(image.convert("L").resize((64, 64))), pixels_per_cell=(8, 8), cells_per_block=(2, 2))


def baselines(table: Path) -> None:
    """The test score of linear models on a table."""
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.metrics import average_precision_score, r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = list(csv.DictReader(table.open()))
    train, test = (np.array([row["split"] == part for row in rows]) for part in ("train", "test"))
    for kind in ("pixels", "hog"):
        inputs = np.array([features(row["path"], kind) for row in rows])
        if "labels" in rows[0]:
            truth = np.array([[name in row["labels"].split("|") for name in LABELS] for row in rows])
            models = [make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=300)) for _ in LABELS]
            scores = [
                average_precision_score(has[test], model.fit(inputs[train], has[train]).decision_function(inputs[test]))
                for model, has in zip(models, truth.T, strict=True)
            ]
            print(f"{table.stem}, {kind}: AP {np.mean(scores):.3f}", flush=True)
        else:
            truth = np.array([[float(row[name]) for name in row if name not in ("path", "split")] for row in rows])
            model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 6, 13))).fit(inputs[train], truth[train])
            score = r2_score(truth[test], model.predict(inputs[test]).reshape(truth[test].shape))
            print(f"{table.stem}, {kind}: R2 {score:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bccd", "camvid", "tables"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    tables(given.bccd, given.camvid, given.tables)
    for table in sorted(given.tables.glob("*.csv")):
        baselines(table)


if __name__ == "__main__":
    main()
