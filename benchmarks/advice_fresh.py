"""Five sets that neither the measured tables of `vitrail advise` nor its earlier check have; for advice_sets.py.

Their packages are repositories, cloned as `advice_sets.py` says. Nothing of them is in the package.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from first_try_sets import GITHUB, RealSet, Sample, package, picture
from PIL import Image

_CIRCUIT = ("open", "short", "mousebite", "spur", "copper", "pinhole")  # as the set numbers them, from 1
_SUFFIXES = (".jpg", ".jpeg", ".png")


def trash(folder: Path) -> Iterator[Sample]:
    """TrashNet: photos of glass, paper, cardboard, plastic, metal and other rubbish, every second one for the test."""
    for path in sorted((package(folder, "trashnet") / "dataset-resized").glob("*/*.jpg")):
        number = int(re.sub(r"\D", "", path.stem))
        yield Sample(path.parent.name, picture(path), path.stem, "test" if number % 2 else "train")


def leaves(folder: Path) -> Iterator[Sample]:
    """PlantDoc: photos of leaves of thirteen plants, ill and healthy; the plant is to be told. Its own parts."""
    root = package(folder, "PlantDoc-Dataset")
    for part in ("train", "test"):
        for number, path in enumerate(sorted((root / part).glob("*/*"))):
            if path.suffix.lower() in _SUFFIXES:
                yield Sample(path.parent.name.split()[0].lower(), picture(path), f"{part}{number}", part)


def circuits(folder: Path) -> Iterator[Sample]:
    """DeepPCB: scans of printed circuits, 64 pixels around a defect of one of six kinds. Its own parts."""
    root = package(folder, "DeepPCB") / "PCBData"
    for part, file in (("train", "trainval.txt"), ("test", "test.txt")):
        for line in (root / file).read_text().splitlines():
            image, boxes = line.split()
            scan = Image.open(root / image.replace(".jpg", "_test.jpg")).convert("L")
            for number, box in enumerate((root / boxes).read_text().splitlines()):
                x1, y1, x2, y2, kind = map(int, box.split())
                x, y = (min(max((low + high) // 2 - 32, 0), 640 - 64) for low, high in ((x1, x2), (y1, y2)))
                crop = scan.crop((x, y, x + 64, y + 64))
                yield Sample(_CIRCUIT[kind - 1], crop, f"{Path(image).stem}_{number}", part)


def syllables(folder: Path) -> Iterator[Sample]:
    """Handwritten syllables of an Indian script, 13 of them; every second one for the test."""
    root = package(folder, "Handwritten-Syllable-Classification-Dataset") / "raw images"
    for label in sorted(path for path in root.iterdir() if path.is_dir()):
        for number, path in enumerate(sorted(label.glob("*.jpg"))):
            yield Sample(label.name, picture(path), path.stem, "test" if number % 2 else "train")


def apples(folder: Path) -> Iterator[Sample]:
    """Fruits-360: apples of thirteen kinds, turned around one axis in training and around another in the test."""
    root = package(folder, "Fruit-Images-Dataset")
    for path in sorted(root.glob("T*/Apple */*.jpg")):
        turned = path.stem.startswith("r")
        if turned == (path.parents[1].name == "Test"):
            yield Sample(path.parent.name, picture(path), path.stem, "test" if turned else "train")


FRESH = {
    "trash": RealSet("photos", "rubbish", GITHUB + "garythung/trashnet", "MIT", trash, 60),
    "leaves": RealSet("photos", "leaves of plants", GITHUB + "pratikkayal/PlantDoc-Dataset", "CC BY 4.0", leaves, 60),
    "circuits": RealSet("industrial", "circuit defects", GITHUB + "tangsanli5201/DeepPCB", "MIT", circuits, 60),
    "syllables": RealSet(
        "handwriting", "13 syllables", GITHUB + "work4devanshu/Handwritten-Syllable-Classification-Dataset", "MIT",
        syllables, 40,
    ),
    "apples": RealSet("photos", "kinds of apples", GITHUB + "Horea94/Fruit-Images-Dataset", "MIT", apples, 40),
}  # fmt: skip
