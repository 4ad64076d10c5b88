"""Several labels per image: lists and joined names, the rarest label as stratum, alignment by name."""

import pytest
import torch

from vitrail.data.targets import ClassTarget, LabelsTarget
from vitrail.errors import DataError

LOOKS = LabelsTarget(classes=("red", "round", "small"))


def test_lists_of_names():
    target, values = LabelsTarget.of([["round", "red"], [], ["small"]])
    assert target == LOOKS
    assert values.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert [target.text(value) for value in values] == ["red, round", "none", "small"]
    assert target.groups(values) == [None, None, "small"]
    assert target.counts(values) == [1, 1, 1]


def test_the_stratum_is_the_rarest_label():
    values = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert LOOKS.strata(values) == [1, 0, 2, 2, -1]


def test_alignment_by_name():
    values = torch.tensor([[1.0, 0.0, 1.0]])
    wider = LabelsTarget(classes=("small", "green", "round", "red"))
    assert LOOKS.align(values, wider, name="x").tolist() == [[1, 0, 0, 1]]
    with pytest.raises(DataError, match=r"'small'.*red, round"):
        LOOKS.align(values, LabelsTarget(classes=("red", "round")), name="x")
    with pytest.raises(DataError, match="several labels"):
        LOOKS.align(values, ClassTarget(classes=LOOKS.classes), name="x")
    assert LOOKS.joined(ClassTarget(classes=("red",))) == LOOKS


def test_what_cannot_be_learned():
    values = torch.eye(3)
    assert LOOKS.refusal({"train": ("photos", values), "val": ("photos", values[:1])}) is None
    assert "'small'" in LOOKS.refusal({"train": ("photos", values[:2]), "val": ("photos", values)})
    assert LOOKS.lost(values, values[1:]) == ("red",)
