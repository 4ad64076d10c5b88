"""The contract's own classes: subsets, other targets, and fingerprints that mean something."""

import errno
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.dataset import Batch, Retargeted, Subset, digest, file_facts, target_digest
from vitrail.data.sources.arrays import Arrays
from vitrail.data.targets import ClassTarget, NumbersTarget
from vitrail.errors import DataError

LETTERS = {"label": ClassTarget(classes=("a", "b", "c"))}


def whole() -> Arrays:
    images = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
    return Arrays(images, {"label": torch.tensor([0, 1, 0, 1, 2, 2])}, LETTERS, name="six")


def test_subset_reads_through():
    subset = Subset(whole(), [4, 1])
    assert len(subset) == 2
    assert subset.targets["label"].tolist() == [2, 1]
    assert subset.schema == LETTERS
    assert torch.equal(subset.read(0), whole().read(4))
    assert subset.where(1) == "six[1]"
    assert subset.key(0) == "4"
    assert subset.encoded(0) is None


def test_subset_fingerprint_tells_which():
    prints = {Subset(whole(), indices).fingerprint for indices in ([0, 1], [1, 0], [0], [0, 1, 2])}
    assert len(prints) == 4
    assert Subset(whole(), [0, 1]).fingerprint == Subset(whole(), [0, 1]).fingerprint


def test_retargeted_changes_targets_only():
    schema = {"label": ClassTarget(classes=("x", "y"))}
    other = Retargeted(whole(), {"label": torch.tensor([1, 0, 1, 0, 0, 0])}, schema)
    assert other.targets["label"].tolist() == [1, 0, 1, 0, 0, 0]
    assert other.schema == schema
    assert torch.equal(other.read(3), whole().read(3))
    assert other.fingerprint != whole().fingerprint
    assert (other.where(2), other.key(2), other.encoded(2)) == ("six[2]", "2", None)
    unlabelled = Retargeted(whole(), {}, {})
    assert len({other.fingerprint, unlabelled.fingerprint, whole().fingerprint}) == 3


def test_digest_is_the_same_in_every_process():
    assert digest(["a", "b"]) == hashlib.sha256(b"a\0b\0").hexdigest()[:32]
    assert digest(["ab"]) != digest(["a", "b"])


def test_file_facts_notice_changes(tmp_path):
    file = tmp_path / "x"
    assert file_facts(file) == "x:missing"
    file.write_bytes(b"1")
    first = file_facts(file)
    file.write_bytes(b"12")
    assert file_facts(file) != first


def test_file_facts_do_not_call_a_file_missing_when_the_machine_fails(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(Path, "stat", fails)
    with pytest.raises(DataError, match="machine"):
        file_facts(tmp_path / "x")


def test_target_digest_sees_every_value_name_and_kind():
    first = torch.tensor([[0.0], [1.0]])
    age, price = ({"numbers": NumbersTarget(names=(name,))} for name in ("age", "price"))
    digests = {
        target_digest(age, {"numbers": first}),
        target_digest(age, {"numbers": first.flip(0)}),
        target_digest(price, {"numbers": first}),
        target_digest({}, {}),
    }
    assert len(digests) == 4
    assert target_digest(age, {"numbers": first}) == target_digest(age, {"numbers": first.clone()})


def test_batch_gives_its_tensors_and_takes_others():
    batch = Batch(
        torch.zeros(2, 1, 2, 2), {"label": torch.tensor([0, 1]), "numbers": torch.ones(2, 3)}, torch.arange(2)
    )
    again = batch.with_tensors([tensor + 1 for tensor in batch.tensors()])
    assert list(again.targets) == ["label", "numbers"]
    assert again.targets["label"].tolist() == [1, 2]
    assert again.ids.tolist() == [1, 2]
