"""Faults at system calls of a save, a pack, a table and a report: an error in words, then a rerun with the same bits.

A short form of benchmarks/faults.py, within this process: an audit hook fails one call on the folder.
"""

import contextlib
import errno
import hashlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.folder import read_folder
from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.prediction_table import bulk
from vitrail.errors import VitrailError
from vitrail.files import write_json
from vitrail.report import Facts, Report

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOMEM)


class Fault:
    """Fails the call of a number, of those that name a path below a folder; counts them."""

    def __init__(self) -> None:
        self.folder: str | None = None

    @contextlib.contextmanager
    def at(self, folder: Path, number: int = -1, error: int = 0) -> Iterator[None]:
        self.folder, self.number, self.error, self.count = str(folder), number, error, 0
        try:
            yield
        finally:
            self.folder = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not arguments or not event.startswith(("open", "os.", "shutil.", "tempfile.")):
            return
        if isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(self.folder):
            self.count += 1
            if self.count - 1 == self.number:
                raise OSError(self.error, os.strerror(self.error), str(arguments[0]))


@pytest.fixture(scope="module")
def fault() -> Fault:
    made = Fault()
    sys.addaudithook(made)  # stays, and does nothing when no folder is set
    return made


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(4):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


def save(root: Path, _: Path) -> None:
    torch.manual_seed(0)
    options = {"dim": 8, "depth": 1, "num_heads": 1, "image_size": 16, "num_classes": 2}
    vitrail.save(vitrail.create("vit_tiny_patch16", **options), root / "model")


def packs(root: Path, images: Path) -> None:
    pack(read_folder(images).train, Preprocess(image_size=(8, 8)), folder=root)


def table(root: Path, images: Path) -> None:
    def predict(left: Sequence[ImageFile]) -> Iterator[dict[str, Any]]:
        return ({"path": image.name, "label": "=x", "error": None} for image in left)

    files = [ImageFile(str(file), file) for file in sorted(images.rglob("*.png"))]
    bulk(files, root / "found.csv", predict, columns=("label",), model="m@0")


def report(root: Path, _: Path) -> None:
    Report("A run", (Facts("Result", {"accuracy": 0.5}),)).to_html(root / "report.html")


def digests(root: Path) -> dict[str, str]:
    files = sorted(file for file in root.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("work", [save, packs, table, report])
def test_a_rerun_after_a_fault_leaves_the_same_bits(
    work: Callable[[Path, Path], None], seed: int, fault: Fault, images: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with fault.at(root):
        work(root, images)
    expected, calls = digests(root), fault.count
    assert calls > 3
    draw = random.Random(f"{work.__name__} {seed}")
    shutil.rmtree(root)
    root.mkdir()
    with fault.at(root, draw.randrange(calls), draw.choice(ERRORS)), contextlib.suppress(VitrailError, OSError):
        work(root, images)
    assert fault.count > fault.number  # it came
    work(root, images)
    assert digests(root) == expected
    write_json(root / "other.json", {})  # a writer that starts later sweeps the folder
    assert not list(root.glob(".*.vitrail-new"))
