"""The dataset inside the package: 12,000 training and 2,000 test images of Fashion-MNIST (MIT)."""

from importlib import resources
from pathlib import Path

from vitrail.data.dataset import Found
from vitrail.data.sources.arrays import read_arrays
from vitrail.data.sources.catalogue import KNOWN

NAMES = ("demo", "fashion-mnist-12k")
FOLDER = "embedded_fashion_mnist"


def embedded_folder() -> Path:
    """The folder of the four idx files, their licence and their origin."""
    return Path(str(resources.files("vitrail.data.sources"))) / FOLDER


def read_embedded() -> Found:
    """Train and test, 28 x 28, grey, ten balanced classes; test images come from the official test set."""
    found = read_arrays(embedded_folder(), classes=KNOWN["fashion-mnist"].classes)
    for part in (found.train, found.test):
        if part is not None:
            part.name = NAMES[1]
    note = "Embedded dataset: 12,000 training and 2,000 test images of Fashion-MNIST (arXiv:1708.07747; MIT)."
    return found._replace(notes=(note,))
