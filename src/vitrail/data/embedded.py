"""The data that comes with the package: 12,000 training and 2,000 test images of Fashion-MNIST (MIT)."""

from importlib import resources
from pathlib import Path

from vitrail.data.arrays import read_arrays
from vitrail.data.dataset import Found
from vitrail.data.known import KNOWN

NAMES = ("demo", "fashion-mnist-12k")
FOLDER = "embedded_fashion_mnist"


def embedded_folder() -> Path:
    """Where the four idx files, their licence and their origin lie."""
    return Path(str(resources.files("vitrail.data"))) / FOLDER


def read_embedded() -> Found:
    """Train and test, 28 x 28, grey, ten classes in equal parts; test images come from the official test set."""
    found = read_arrays(embedded_folder(), classes=KNOWN["fashion-mnist"].classes)
    for part in (found.train, found.test):
        if part is not None:
            part.name = NAMES[1]
    note = "The embedded data: 12,000 training and 2,000 test images of Fashion-MNIST (arXiv:1708.07747; MIT)."
    return found._replace(notes=(note,))
