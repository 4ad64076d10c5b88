"""A table of cells for every kind of target: what its contract suite reads. A new kind needs one entry."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget, Target


class Example(NamedTuple):
    """A table of one kind of target, and variations of it."""

    columns: dict[str, list[Any]]  # name -> cells
    bad_cells: Sequence[Any]  # none of them may be read in the first column
    reorder: Callable[[Any], Target] | None = None  # the same names in another order, where a kind has names
    rename: Callable[[Any], Target] | None = None  # other names
    unlearnable: Callable[[Tensor], Tensor] | None = None  # training values that no model could learn from, if any


EXAMPLES = {
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
