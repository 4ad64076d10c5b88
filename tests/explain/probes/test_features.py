"""Parts of the data of a probe."""

import torch
from support.small_data import photos

from vitrail.data.dataset import Found
from vitrail.explain.probes.features import divide


def test_a_part_of_a_part_holds_its_own_images():
    whole = photos(100)
    parts = divide(whole, seed=0)
    assert {part.whole for part in parts[:3]} == {whole}
    assert sorted(index for part in parts[:3] for index in part.indices) == list(range(100))
    assert all(torch.equal(part.targets["label"], whole.targets["label"][part.indices]) for part in parts[:3])


def test_parts_are_the_sources_own_or_carved_out():
    train, val, test = photos(100), photos(10), photos(20)
    parts = divide(Found(train, val=val, test=test), seed=0)
    assert [len(part) for part in parts[:3]] == [100, 10, 20]
    parts = divide(Found(train, val=val), seed=0)
    assert [len(part) for part in parts[:3]] == [90, 10, 10]
    assert parts.origin == "the validation part of made"
    parts = divide(train, seed=0)
    assert [len(part) for part in parts[:3]] == [72, 8, 20]
    assert divide(train, seed=0).test.indices == parts.test.indices
    assert divide(train, seed=1).test.indices != parts.test.indices
