"""Splits: what is carved out is stratified and stable, classes are matched by name, gaps are refused."""

import numpy as np
import pytest
import torch

from vitrail.data.dataset import Found, Joined, Splits
from vitrail.data.sources.arrays import Arrays
from vitrail.data.sources.folder import Files
from vitrail.data.split import align, carve, check, complete
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget, Target
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.errors import DataError


def of(values, target: Target | None, name="data") -> Arrays:
    images = np.zeros((len(values), 2, 2), dtype=np.uint8)
    return Arrays(images, *(({target.field: values}, {target.field: target}) if target else ({}, {})), name=name)


def made(labels, classes=("a", "b", "c"), name="data") -> Arrays:
    return of(torch.tensor(labels, dtype=torch.int64), ClassTarget(classes=tuple(classes)), name)


def counts(dataset) -> list[int]:
    ((field, target),) = dataset.schema.items()
    return target.counts(dataset.targets[field])


def files(tmp_path, names, labels, classes=("a", "b")) -> Files:
    return Files(tmp_path, names, {"label": torch.tensor(labels)}, {"label": ClassTarget(classes=classes)})


def test_names_that_differ_only_in_case_are_noted():
    twice, once = (complete(Found(made([0, 1, 2] * 4, names)), val=None, seed=0) for names in ("rRb", "rgb"))
    assert "'r' and 'R'" in twice.notes[0]
    assert len(once.notes) == len(twice.notes) - 1
    parts = Splits(made([0, 2], tuple("rRb")), made([1, 2], tuple("rRb")), None)
    with pytest.raises(DataError, match=r"'R'.*train.*'r'"):
        check(parts)


def test_carve_takes_the_share_of_each_class():
    whole = made([0] * 100 + [1] * 50 + [2] * 3)
    train, val = carve(whole, 0.2, seed=0)
    assert counts(val) == [20, 10, 1]
    assert counts(train) == [80, 40, 2]
    assert sorted(train.indices + val.indices) == list(range(153))
    assert carve(whole, 0.2, seed=0)[1].indices == val.indices
    assert carve(whole, 0.2, seed=1)[1].indices != val.indices


def test_adding_a_file_moves_at_most_one_other(tmp_path):
    names = [f"a/{number}.png" for number in range(60)] + [f"b/{number}.png" for number in range(60)]
    before = files(tmp_path, names, [0] * 60 + [1] * 60)
    _, val = carve(before, 0.1, seed=0)
    held = {before.key(index) for index in val.indices}
    for extra in range(20):
        after = files(tmp_path / "elsewhere", [f"a/new{extra}.png", *names], [0] * 61 + [1] * 60)
        _, now = carve(after, 0.1, seed=0)
        assert len(held - {after.key(index) for index in now.indices}) <= 1


def test_several_labels_are_carved_by_the_rarest():
    labels = torch.zeros(100, 3)
    labels[:, 0] = 1.0
    labels[90:, 1] = 1.0
    labels[:5] = 0.0
    whole = of(labels, LabelsTarget(classes=("a", "b", "c")))
    train, val = carve(whole, 0.2, seed=0)
    assert counts(val) == [19, 2, 0]
    assert len(train) + len(val) == 100


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_must_be_one(share):
    with pytest.raises(DataError, match="val"):
        carve(made([0, 1, 2]), share, seed=0)


def test_complete_says_what_it_chose():
    splits = complete(Found(made([0, 1, 2] * 20)), val=None, seed=0)
    assert (len(splits.train), len(splits.val), splits.test) == (54, 6, None)
    assert "6 of 60" in splits.notes[0]
    assert "no validation split" in splits.notes[0]
    assert "of each class" in splits.notes[0]


def test_a_given_validation_part_wins():
    found = Found(made([0, 1, 2]), made([0, 1, 2, 2]))
    assert complete(found, val=None, seed=0).val is found.val
    other = made([2, 1, 0], name="other")
    splits = complete(found, val=other, seed=0)
    assert splits.val is other
    assert "is not used" in splits.notes[-1]


def test_with_a_share_the_validation_split_joins_training():
    found = Found(made([0, 1, 2] * 10), made([0, 1, 2] * 10))
    splits = complete(found, val=0.1, seed=0)
    assert (len(splits.train), len(splits.val)) == (54, 6)
    assert "joins" in splits.notes[-1]
    keys = [part.key(index) for part in (splits.train, splits.val) for index in range(len(part))]
    assert len(set(keys)) == 60
    again = complete(found, val=0.1, seed=0)
    assert splits.train.fingerprint == again.train.fingerprint != complete(found, val=0.2, seed=0).train.fingerprint


def test_joined_samples_are_those_of_both():
    first, second = made([0, 1, 2]), made([2, 1])
    both = Joined(first, second)
    assert both.targets["label"].tolist() == [0, 1, 2, 2, 1]
    assert [both.where(index) for index in (2, 3)] == [first.where(2), second.where(0)]
    assert torch.equal(both.read(4), second.read(1))
    mask = MaskTarget(classes=("a", "b"))
    paths = [of(torch.full((2, width), 7, dtype=torch.uint8), mask) for width in (3, 5)]
    assert Joined(*paths).targets["mask"].tolist() == [[7, 7, 7, 0, 0]] * 2 + [[7] * 5] * 2


ANIMALS = {"label": ClassTarget(classes=("bird", "cat", "dog"))}
SEVERAL = {"labels": LabelsTarget(classes=("bird", "cat", "dog"))}


def test_align_matches_by_name():
    moved = align(made([0, 1, 1], ("dog", "cat")), ANIMALS)
    assert moved.targets["label"].tolist() == [2, 1, 1]
    assert moved.schema == ANIMALS
    several = align(made([0, 1, 1], ("dog", "cat")), SEVERAL)
    assert several.targets["labels"].tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 0]]
    again = align(several, {"labels": LabelsTarget(classes=("bird", "cat", "dog", "emu"))})
    assert again.targets["labels"][0].tolist() == [0, 0, 1, 0]
    with pytest.raises(DataError, match=r"2 classes.*'dgo'.*'dog'"):
        align(made([0], ("dgo",)), {"label": ClassTarget(classes=("cat", "dog"))})
    with pytest.raises(DataError, match="several labels"):
        align(several, ANIMALS)
    with pytest.raises(DataError, match="age"):
        align(several, {"numbers": NumbersTarget(names=("age",))})


def test_align_to_and_from_no_labels():
    assert align(made([0, 1, 1]), {}).targets == {}
    assert align(of(torch.zeros(3), None), {}).schema == {}
    with pytest.raises(DataError, match="no labels"):
        align(of(torch.zeros(3), None), ANIMALS)


def test_align_matches_fields_by_name_and_kind_whatever_their_order():
    label, age = ClassTarget(classes=("a", "b")), NumbersTarget(names=("age",))
    values = {"numbers": torch.tensor([[3.0], [4.0]]), "label": torch.tensor([1, 0])}
    images = np.zeros((2, 2, 2), dtype=np.uint8)
    dataset = Arrays(images, values, {"numbers": age, "label": label}, name="two")
    found = align(dataset, {"label": label, "numbers": age})
    assert torch.equal(found.targets["label"], values["label"])
    assert torch.equal(found.targets["numbers"], values["numbers"])
    renamed = align(dataset, {"species": label, "age": age})
    assert torch.equal(renamed.targets["species"], values["label"])
    assert torch.equal(renamed.targets["age"], values["numbers"])


def test_one_multi_label_split_makes_all_multi_label():
    val = of(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), LabelsTarget(classes=("a", "b", "c")))
    splits = complete(Found(made([0, 1, 2]), val), val=None, seed=0)
    assert splits.train.schema == splits.val.schema == {"labels": LabelsTarget(classes=("a", "b", "c"))}
    assert splits.train.targets["labels"].tolist() == torch.eye(3).tolist()


@pytest.mark.parametrize("count", [2, 5, 10, 15, 33, 100, 1000])
def test_numbers_are_carved_evenly_whatever_their_count(count):
    whole = of(torch.arange(count).float()[:, None], NumbersTarget(names=("age",)))
    train, val = carve(whole, 0.1, seed=0)
    assert len(val) == pytest.approx(max(0.1 * count, 1), abs=1)
    assert len(train) + len(val) == count
    if count >= 100:
        assert val.targets["numbers"].mean() == pytest.approx(count / 2, rel=0.15)


def test_images_without_labels_are_carved():
    train, val = carve(of(torch.zeros(50), None), 0.2, seed=0)
    assert (len(train), len(val), val.schema) == (40, 10, {})
    splits = complete(Found(of(torch.zeros(50), None)), val=None, seed=0)
    assert check(splits) is splits
    assert "of each" not in splits.notes[0]


@pytest.mark.parametrize(
    ("train", "val", "test", "classes", "message"),
    [
        ([0, 0], [0], None, ("a",), r"one class.*'a'"),
        ([0, 1], [0, 1, 2], None, ("a", "b", "c"), r"'c'.*train"),
        ([0, 1, 2, 2], [0, 1], None, ("a", "b", "c"), r"'c'.*val"),
        ([0, 1, 2], [0, 1], None, ("a", "b", "c"), r"'c'.*one image"),
        ([0, 1, 2], [0, 1, 2], [1], ("a", "b", "c"), r"'a', 'c'.*test"),
        ([0, 1, 2], [], None, ("a", "b", "c"), "val"),
    ],
)
def test_gaps_are_refused(train, val, test, classes, message):
    parts = [None if labels is None else made(labels, classes) for labels in (train, val, test)]
    with pytest.raises(DataError, match=message):
        check(Splits(*parts))


def test_what_can_be_learned_passes():
    splits = Splits(made([0, 1, 2]), made([0, 1, 2]), None)
    assert check(splits) is splits
