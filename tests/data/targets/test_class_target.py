"""One class per image: names in natural order, soft values after mixing, splits aligned by name."""

import pytest
import torch

from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
from vitrail.errors import DataError

ANIMALS = ClassTarget(classes=("cat", "dog", "emu"))


def test_classes_are_in_natural_order():
    target, values = ClassTarget.of(["10", "9", "2", "9"])
    assert target.classes == ("2", "9", "10")
    assert values.tolist() == [2, 1, 0, 1]


def test_alignment_to_other_classes_and_kinds():
    values = torch.tensor([0, 2, 1])
    assert ANIMALS.align(values, ClassTarget(classes=("emu", "ant", "dog", "cat")), name="x").tolist() == [3, 0, 2]
    several = LabelsTarget(classes=("emu", "dog", "cat"))
    assert ANIMALS.align(values, several, name="x").tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    with pytest.raises(DataError, match=r"'emu'.*cat, dog"):
        ANIMALS.align(values, ClassTarget(classes=("cat", "dog")), name="x")
    with pytest.raises(DataError, match=r"3 classes.*age"):
        ANIMALS.align(values, NumbersTarget(names=("age",)), name="x")


def test_a_multi_label_split_makes_all_multi_label():
    assert ANIMALS.joined(LabelsTarget(classes=("cat",))) == LabelsTarget(classes=ANIMALS.classes)
    assert ANIMALS.joined(ClassTarget(classes=("cat",))) == ANIMALS


def test_shares_of_hard_and_soft_values():
    hard = torch.tensor([1, 0])
    assert ANIMALS.shares(hard).tolist() == [[0, 1, 0], [1, 0, 0]]
    mixed = ANIMALS.mix(hard, torch.tensor([1, 0]), torch.tensor([[0.75], [1.0]]))
    assert mixed.tolist() == [[0.25, 0.75, 0], [1, 0, 0]]
    assert (ANIMALS.soft(hard), ANIMALS.soft(mixed)) == (False, True)
    assert torch.equal(ANIMALS.shares(mixed), mixed)


def test_counts_lost_classes_and_groups():
    before = torch.tensor([0, 0, 1, 2])
    assert ANIMALS.counts(before) == [2, 1, 1]
    assert ANIMALS.lost(before, before[:2]) == ("dog", "emu")
    assert ANIMALS.groups(before[2:]) == ["dog", "emu"]
    assert ANIMALS.text(before[3]) == "emu"


def test_what_cannot_be_learned():
    parts = {"train": ("photos", torch.tensor([0, 1, 2])), "val": ("photos", torch.tensor([0, 1]))}
    assert "'emu'" in ANIMALS.refusal(parts)
    assert "only one class" in ClassTarget(classes=("cat",)).refusal({"train": ("photos", torch.zeros(3))})
    assert ANIMALS.refusal(parts | {"val": parts["train"]}) is None
