"""Splits: what is carved out is stratified and stable, classes are matched by name, gaps are refused."""

import numpy as np
import pytest
import torch

from vitrail.data.arrays import Arrays
from vitrail.data.dataset import Found, Splits
from vitrail.data.folder import Files
from vitrail.data.split import align, carve, check, complete, counts
from vitrail.errors import DataError


def made(labels, classes=("a", "b", "c"), name="data") -> Arrays:
    labels = torch.tensor(labels)
    return Arrays(np.zeros((len(labels), 2, 2), dtype=np.uint8), labels, classes, name=name)


def files(tmp_path, names, labels, classes=("a", "b")) -> Files:
    return Files(tmp_path, names, torch.tensor(labels), classes)


def test_names_that_differ_by_case_alone_are_told():
    twice, once = (complete(Found(made([0, 1, 2] * 4, names)), val=None, seed=0) for names in ("rRb", "rgb"))
    assert "'r' and 'R'" in twice.notes[0]
    assert len(once.notes) == len(twice.notes) - 1
    parts = Splits(made([0, 2], tuple("rRb")), made([1, 2], tuple("rRb")), None)
    with pytest.raises(DataError, match=r"class 'R' .* train split; .* \(if 'r' and 'R' mean the same, give them one"):
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
    whole = Arrays(np.zeros((100, 2, 2), dtype=np.uint8), labels, ("a", "b", "c"), name="data")
    train, val = carve(whole, 0.2, seed=0)
    assert counts(val) == [19, 2, 0]
    assert len(train) + len(val) == 100


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_must_be_one(share):
    with pytest.raises(DataError, match="between 0 and 1"):
        carve(made([0, 1, 2]), share, seed=0)


def test_complete_says_what_it_chose():
    splits = complete(Found(made([0, 1, 2] * 20)), val=None, seed=0)
    assert (len(splits.train), len(splits.val), splits.test) == (54, 6, None)
    assert "Validation is 6 of 60 training images (10 % of each class)" in splits.notes[0]
    assert "no validation part" in splits.notes[0]


def test_a_given_validation_part_wins_or_clashes():
    found = Found(made([0, 1, 2]), made([0, 1, 2, 2]))
    assert complete(found, val=None, seed=0).val is found.val
    with pytest.raises(DataError, match=r"validation part of its own \(4 images\), so val=0.3"):
        complete(found, val=0.3, seed=0)
    other = made([2, 1, 0], name="other")
    splits = complete(found, val=other, seed=0)
    assert splits.val is other
    assert "is not used" in splits.notes[-1]


def test_align_matches_by_name():
    moved = align(made([0, 1, 1], ("dog", "cat")), ("bird", "cat", "dog"), multi_label=False)
    assert moved.labels.tolist() == [2, 1, 1]
    assert moved.classes == ("bird", "cat", "dog")
    several = align(made([0, 1, 1], ("dog", "cat")), ("bird", "cat", "dog"), multi_label=True)
    assert several.labels.tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 0]]
    again = align(several, ("bird", "cat", "dog", "emu"), multi_label=True)
    assert again.labels[0].tolist() == [0, 0, 1, 0]
    with pytest.raises(DataError, match=r"not among the 2 classes of the training data: 'dgo' \('dog'\?\)"):
        align(made([0], ("dgo",)), ("cat", "dog"), multi_label=False)
    with pytest.raises(DataError, match="several labels an image, where one is expected"):
        align(several, ("bird", "cat", "dog"), multi_label=False)


@pytest.mark.parametrize(
    ("train", "val", "test", "classes", "message"),
    [
        ([0, 0], [0], None, ("a",), "data has one class only, 'a'"),
        ([0, 1], [0, 1, 2], None, ("a", "b", "c"), "class 'c' of data has no image in the train split"),
        ([0, 1, 2, 2], [0, 1], None, ("a", "b", "c"), "class 'c' of data has no image in the val split"),
        ([0, 1, 2], [0, 1], None, ("a", "b", "c"), "class 'c' of data has one image only"),
        ([0, 1, 2], [0, 1, 2], [1], ("a", "b", "c"), "classes 'a', 'c' of data have no image in the test split"),
        ([0, 1, 2], [], None, ("a", "b", "c"), "no image in its val split"),
    ],
)
def test_gaps_are_refused(train, val, test, classes, message):
    parts = [None if labels is None else made(labels, classes) for labels in (train, val, test)]
    with pytest.raises(DataError, match=message):
        check(Splits(*parts))


def test_what_can_be_learned_passes():
    splits = Splits(made([0, 1, 2]), made([0, 1, 2]), None)
    assert check(splits) is splits
