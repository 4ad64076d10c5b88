"""CIFAR's pickles: read as they were published, without running anything in them."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from support.single_target import classes, labels

from vitrail.data.sources.cifar import load_pickle, looks_like_cifar, read_cifar
from vitrail.errors import DataError

RNG = np.random.default_rng(0)


def batch(count=4, keys=("data", "labels")) -> dict:
    pixels = RNG.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {keys[0].encode(): pixels, keys[1].encode(): [number % 2 for number in range(count)]}


def cifar10(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    made = {f"data_batch_{number}": batch() for number in range(1, 6)} | {"test_batch": batch(2)}
    made["batches.meta"] = {b"label_names": ["airplane", "cat"]}
    for name, content in made.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder, made


def test_folder_and_the_one_above(tmp_path):
    folder, made = cifar10(tmp_path)
    for place in (folder, tmp_path):
        assert looks_like_cifar(place)
        found = read_cifar(place)
        assert (len(found.train), len(found.test), found.val) == (20, 2, None)
        assert classes(found.train) == ("airplane", "cat")
        assert labels(found.train)[:4].tolist() == [0, 1, 0, 1]
        expected = torch.from_numpy(made["data_batch_2"][b"data"][1].reshape(3, 32, 32))
        assert torch.equal(found.train.read(5), expected)
    assert found.train.where(5).endswith(":train[5]")


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_that_python_3_has_written_again(tmp_path, protocol):
    folder, made = cifar10(tmp_path)
    made["batches.meta"] = {b"label_names": [b"airplane", b"cat"]}
    for name, content in made.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_cifar(folder)
    assert classes(found.train) == ("airplane", "cat")
    assert torch.equal(found.test.read(1), torch.from_numpy(made["test_batch"][b"data"][1].reshape(3, 32, 32)))


def test_fine_labels_of_cifar100(tmp_path):
    for name, count in (("train", 6), ("test", 2)):
        content = batch(count, ("data", "fine_labels")) | {b"coarse_labels": [0] * count}
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bee"]}, protocol=2))
    found = read_cifar(tmp_path)
    assert classes(found.train) == ("apple", "bee")
    assert labels(found.test).tolist() == [0, 1]


def test_archive_is_read_in_place(tmp_path):
    folder, _ = cifar10(tmp_path / "made")
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
    found = read_cifar(archive)
    assert torch.equal(found.train.read(7), read_cifar(folder).train.read(7))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-python.tar.gz", "made"]
    archive.write_bytes(archive.read_bytes()[:-500])
    with pytest.raises(DataError, match="truncated"):
        read_cifar(archive)


def test_archive_without_the_files(tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("else"), io.BytesIO())
    with pytest.raises(DataError, match="files"):
        read_cifar(archive)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_anything(tmp_path, protocol):
    mark = tmp_path / "mark"
    for evil in (Evil(os.mkdir, str(mark)), Evil(eval, f"open({str(mark)!r}, 'w')"), Evil(getattr, "", "join")):
        with pytest.raises(DataError, match=r"pickle.*trust"):
            load_pickle(pickle.dumps({"data": evil}, protocol=protocol), "file")
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_arrays_of_every_protocol(protocol):
    array = RNG.integers(0, 256, (2, 3), dtype=np.uint8)
    loaded = load_pickle(pickle.dumps({b"data": array, "labels": [1], "x": b"\xff"}, protocol=protocol), "file")
    assert np.array_equal(loaded["data"], array)
    assert loaded["labels"] == [1]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_arrays_that_are_not_plain_bytes_never_reach_numpy(protocol):
    for array in (np.zeros(3), np.array([{}]), np.zeros(2, "V9"), np.asfortranarray(np.zeros((2, 3), np.uint8))):
        with pytest.raises(DataError, match="bytes"):
            load_pickle(pickle.dumps({"data": array}, protocol=protocol), "file")
    right = pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, protocol=protocol)
    wrong = right.replace(b"3072", b"3073") if protocol == 0 else right.replace(b"\x00\x0c", b"\x00\x7c")
    assert wrong != right
    with pytest.raises(DataError, match="shape"):
        load_pickle(wrong, "file")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_3", b"garbage", "data_batch_3"),
        ("data_batch_3", pickle.dumps([1]), r"list.*dict"),
        ("data_batch_3", pickle.dumps({"labels": [1]}), "'data'"),
        ("data_batch_3", pickle.dumps({"data": np.zeros((2, 9), np.uint8), "labels": [1, 1]}, 2), "3072"),
        ("data_batch_3", pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, 2), "labels"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [7]}, 2), "label 7 at 0"),
        ("batches.meta", pickle.dumps({}), "'label_names'"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    folder, _ = cifar10(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_cifar(folder)


def test_missing_files(tmp_path):
    folder, _ = cifar10(tmp_path)
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4"):
        read_cifar(folder)
    with pytest.raises(DataError, match="CIFAR"):
        read_cifar(tmp_path / "nowhere")
