"""A table of cells for every kind of target: what its contract suite reads. A new kind needs one entry."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.targets import BoxesTarget, ClassTarget, LabelsTarget, MaskTarget, NumbersTarget, Target
from vitrail.data.targets.boxes_target import CLASS


class Example(NamedTuple):
    """A table of one kind of target, and variations of it."""

    columns: dict[str, list[Any]]  # name -> cells
    bad_cells: Sequence[Any]  # none of them may be read in the first column
    reorder: Callable[[Any], Target] | None = None  # the same names in another order, where a kind has names
    rename: Callable[[Any], Target] | None = None  # other names
    unlearnable: Callable[[Tensor], Tensor] | None = None  # training values that no model could learn from, if any


def pixel_files(kind: str) -> list[str]:
    """24 files of 20 x 30 pixels, removed when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="vitrail-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = []
    for number in range(24):
        rows, columns = np.mgrid[0:20, 0:30]
        classes = (rows > number % 20).astype(np.uint8) + (columns > 15)
        pixels = classes if kind == "mask" else (1000 + 10 * rows + number * columns).astype(np.uint16)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        paths.append(str(folder / f"{number}.png"))
    return paths


def no_boxes(values: Tensor) -> Tensor:
    """The same without a box."""
    empty = torch.zeros_like(values)
    empty[..., CLASS] = -1
    return empty


EXAMPLES = {
    "boxes": Example(
        {"boxes": ["1 2 10 12 cat; 3 3 31 30.5 dog", "", "4 4 9 9 dog", "0 0 32 32 emu"] * 6},
        ["1 2 3 cat", "1 2 x 4 cat", "5 5 2 9 cat", "1 1 nan 3 cat", "1 2 3 4", None, 3, True],
        lambda target: replace(target, classes=target.classes[::-1]),
        lambda target: BoxesTarget(classes=("x", "y", "z")),
        no_boxes,
    ),
    "depth": Example({"depth": pixel_files("depth")}, ["missing.png", None, 3, True]),
    "mask": Example(
        {"mask": pixel_files("mask")},
        ["missing.png", None, 3, True],
        lambda target: MaskTarget(classes=target.classes[::-1]),
        lambda target: MaskTarget(classes=("x", "y", "z")),
    ),
    "class": Example(
        {"label": ["cat", "dog", "emu", "dog"] * 6},
        ["", "-1", None, True, ["cat", "dog"], "['cat']"],
        lambda target: ClassTarget(classes=target.classes[::-1]),
        lambda target: ClassTarget(classes=("x", "y", "z")),
        torch.zeros_like,
    ),
    "labels": Example(
        {"labels": ["red|round", "red", "", "round"] * 6},
        [3, [True], [""], "['red', 'round']"],
        lambda target: LabelsTarget(classes=target.classes[::-1]),
        lambda target: LabelsTarget(classes=("x", "y")),
        torch.zeros_like,
    ),
    "numbers": Example(
        {"age": list(range(24)), "height": [f"{1.5 + 0.01 * number:g}" for number in range(24)]},
        ["", "nan", "inf", "1e99", "old", "3,5", None, True, [1.0]],
        lambda target: replace(target, names=target.names[::-1]),
        lambda target: NumbersTarget(names=("weight",)),
        torch.ones_like,
    ),
}
