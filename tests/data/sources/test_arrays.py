"""Arrays: layouts, types, names of files, idx, and labels out of range."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch
from support.single_target import classes, labels

from vitrail.data.sources.arrays import Arrays, array_labels, looks_like_arrays, read_arrays, read_idx
from vitrail.data.targets import LabelsTarget
from vitrail.errors import DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def made(images) -> Arrays:
    return Arrays(images, {}, {}, name="x")


def idx(array) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_layouts():
    expected = torch.from_numpy(IMAGES[2]).permute(2, 0, 1)
    assert torch.equal(made(IMAGES).read(2), expected)
    assert torch.equal(made(IMAGES.transpose(0, 3, 1, 2)).read(2), expected)
    assert torch.equal(made(IMAGES[..., 0]).read(2), expected[:1])
    assert made(IMAGES).read(2).is_contiguous()


def test_types_are_scaled():
    assert made(np.array([[[0, 128, 65535]]], dtype=np.uint16)).read(0).tolist() == [[[0, 0, 255]]]
    assert made(np.array([[[0.0, 0.5, 1.0]]], dtype=np.float32)).read(0).tolist() == [[[0, 128, 255]]]
    assert made(np.array([[[0, 7, 255]]], dtype=np.int64)).read(0).tolist() == [[[0, 7, 255]]]
    assert made(np.array([[[False, True]]])).read(0).tolist() == [[[0, 255]]]
    clear = np.full((1, 2, 2, 4), (200, 0, 50, 102), dtype=np.uint8)
    assert made(clear).read(0)[:, 0, 1].tolist() == [233, 153, 173]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 5), dtype=np.uint8), "2 x 5"),
        (np.zeros((2, 5, 5, 2), dtype=np.uint8), "2 x 5 x 5 x 2|1, 3"),
        (np.full((1, 2, 2), 300.0), r"float64.*300"),
        (np.full((1, 2, 2), -1), "-1"),
    ],
)
def test_images_that_are_none(images, message):
    with pytest.raises(DataError, match=message):
        made(images)


def test_folder_of_npy(tmp_path):
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_images.npy", IMAGES)
        np.save(tmp_path / f"{split}_labels.npy", LABELS[:, None])
    assert looks_like_arrays(tmp_path)
    found = read_arrays(tmp_path)
    assert found.val is None
    assert classes(found.train) == ("0", "1", "2")
    assert labels(found.test).tolist() == LABELS.tolist()
    assert isinstance(found.train.images, np.memmap)
    assert found.train.where(3) == f"{tmp_path / 'train_images.npy'}[3]"
    before = found.train.fingerprint
    np.save(tmp_path / "train_images.npy", IMAGES[:, :4])
    assert read_arrays(tmp_path).train.fingerprint != before


def test_x_and_y_with_class_names(tmp_path):
    np.save(tmp_path / "X.npy", IMAGES)
    np.save(tmp_path / "y.npy", LABELS)
    (tmp_path / "classes.txt").write_text("ant\nbee\ncow\n")
    for source in (tmp_path, tmp_path / "X.npy"):
        assert classes(read_arrays(source).train) == ("ant", "bee", "cow")


def test_npz_and_several_labels(tmp_path):
    marks = RNG.integers(0, 2, (6, 4))
    np.savez(tmp_path / "d.npz", train_images=IMAGES, train_labels=marks, val_images=IMAGES, val_labels=marks)
    found = read_arrays(tmp_path / "d.npz")
    assert found.train.schema == {"labels": LabelsTarget(classes=tuple("0123"))}
    assert labels(found.val).tolist() == marks.tolist()
    assert found.train.fingerprint == read_arrays(tmp_path / "d.npz").train.fingerprint


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("sign", ["-", "."])
def test_idx_files(tmp_path, end, sign):
    pack = gzip.compress if end else bytes
    grey = IMAGES[..., 0]
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-images{sign}idx3-ubyte{end}").write_bytes(pack(idx(grey)))
        (tmp_path / f"{split}-labels{sign}idx1-ubyte{end}").write_bytes(pack(idx(LABELS.astype(np.uint8))))
    found = read_arrays(tmp_path)
    assert torch.equal(found.test.read(4), torch.from_numpy(grey[4])[None])
    assert labels(found.train).tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "idx"),
        (b"PK\3\4 what", "idx"),
        (idx(IMAGES)[:-1], "truncated|damaged"),
        (idx(IMAGES)[:9], "truncated|damaged"),
        (idx(IMAGES) + b"\0", "truncated|damaged"),
    ],
)
def test_damaged_idx(tmp_path, data, message):
    file = tmp_path / "x-idx3-ubyte"
    file.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_idx(file)


def test_damaged_gzip(tmp_path):
    file = tmp_path / "x.gz"
    for data in (gzip.compress(idx(IMAGES))[:-20], b"no gzip"):
        file.write_bytes(data)
        with pytest.raises(DataError, match=r"read"):
            read_idx(file)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (np.array([0, -1]), None, "label -1 at 1"),
        (np.array([0, 3]), ("a", "b"), "label 3 at 1"),
        (np.array([0.5]), None, "integers"),
        (np.array(["a"]), None, "integers"),
        (np.array([[0, 2]]), None, "0 and 1"),
        (np.zeros((1, 2, 2)), None, "3 dimensions"),
    ],
)
def test_labels_out_of_range(labels, classes, message):
    with pytest.raises(DataError, match=message):
        array_labels(labels, "y", classes=classes)


def test_bad_folders(tmp_path):
    with pytest.raises(DataError, match="arrays"):
        read_arrays(tmp_path)
    np.save(tmp_path / "X.npy", IMAGES)
    with pytest.raises(DataError, match="labels"):
        read_arrays(tmp_path / "X.npy")
    np.save(tmp_path / "y.npy", LABELS[:-1])
    with pytest.raises(DataError, match=r"6 images.* 5 labels"):
        read_arrays(tmp_path)
    (tmp_path / "y.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"y\.npy"):
        read_arrays(tmp_path)
    np.save(tmp_path / "y.npy", np.array([{}] * 6), allow_pickle=True)
    with pytest.raises(DataError, match="array"):
        read_arrays(tmp_path)
    (tmp_path / "z.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="archive"):
        read_arrays(tmp_path / "z.npz")


def test_a_data_set_can_go_to_another_process():
    assert torch.equal(pickle.loads(pickle.dumps(made(IMAGES))).read(1), made(IMAGES).read(1))


def test_memory_has_a_fingerprint_too():
    other = IMAGES.copy()
    other[0, 0, 0, 0] ^= 1
    assert made(IMAGES).fingerprint == made(IMAGES.copy()).fingerprint != made(other).fingerprint
