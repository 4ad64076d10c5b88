"""The contract's own classes: subsets, other labels, and fingerprints that mean something."""

import hashlib

import numpy as np
import torch

from vitrail.data.arrays import Arrays
from vitrail.data.dataset import Relabelled, Subset, digest, file_facts, label_digest


def whole() -> Arrays:
    images = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
    return Arrays(images, torch.tensor([0, 1, 0, 1, 2, 2]), ("a", "b", "c"), name="six")


def test_subset_reads_through():
    subset = Subset(whole(), [4, 1])
    assert len(subset) == 2
    assert subset.labels.tolist() == [2, 1]
    assert torch.equal(subset.read(0), whole().read(4))
    assert subset.where(1) == "six[1]"
    assert subset.key(0) == "4"
    assert subset.encoded(0) is None


def test_subset_fingerprint_tells_which():
    prints = {Subset(whole(), indices).fingerprint for indices in ([0, 1], [1, 0], [0], [0, 1, 2])}
    assert len(prints) == 4
    assert Subset(whole(), [0, 1]).fingerprint == Subset(whole(), [0, 1]).fingerprint


def test_relabelled_changes_labels_alone():
    other = Relabelled(whole(), torch.tensor([1, 0, 1, 0, 0, 0]), ("x", "y"))
    assert other.labels.tolist() == [1, 0, 1, 0, 0, 0]
    assert torch.equal(other.read(3), whole().read(3))
    assert other.fingerprint != whole().fingerprint
    assert (other.where(2), other.key(2), other.encoded(2)) == ("six[2]", "2", None)
    assert other.multi_label is False


def test_digest_is_the_same_in_every_process():
    assert digest(["a", "b"]) == hashlib.sha256(b"a\0b\0").hexdigest()[:32]
    assert digest(["ab"]) != digest(["a", "b"])


def test_file_facts_notice_changes(tmp_path):
    file = tmp_path / "x"
    assert file_facts(file) == "x:gone"
    file.write_bytes(b"1")
    first = file_facts(file)
    file.write_bytes(b"12")
    assert file_facts(file) != first


def test_label_digest_sees_every_label():
    assert label_digest(torch.tensor([0, 1])) != label_digest(torch.tensor([1, 0]))
