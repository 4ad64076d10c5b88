"""WebDataset shards: every tar dialect, labels of every kind, random access, and damage."""

import io
import json
import pickle
import tarfile

import pytest
import torch
from PIL import Image
from support.single_target import classes, labels

from vitrail.data.sources.shards import expand, find_shards, members, read_shards
from vitrail.errors import BrokenImage, DataError


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 3), shade).save(buffer, "PNG")
    return buffer.getvalue()


def tar(path, files, kind=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in files.items():
            content = data if isinstance(data, bytes) else str(data).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def plain(shades, start=0):
    return {
        f"{start + number:04}.{suffix}": png(shade) if suffix == "png" else number % 2
        for number, shade in enumerate(shades)
        for suffix in ("png", "cls")
    }


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{train,val}-{0..1}.tar", ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]),
    ],
)
def test_expand(pattern, paths):
    assert expand(pattern) == paths


def test_expand_refuses_backwards():
    with pytest.raises(DataError, match="lower"):
        expand("a-{3..1}.tar")


def test_images_are_read_at_random(tmp_path):
    tar(tmp_path / "s-000.tar", plain([1, 2, 3]))
    tar(tmp_path / "s-001.tar", plain([4, 5], start=3))
    for source in (tmp_path, str(tmp_path / "s-{000..001}.tar"), str(tmp_path / "s-*.tar")):
        dataset = read_shards(source).train
        assert [int(dataset.read(index).max()) for index in (4, 0, 2)] == [5, 1, 3]
        assert labels(dataset).tolist() == [0, 1, 0, 0, 1]
    assert dataset.where(4) == f"{tmp_path / 's-001.tar'}:0004"
    assert dataset.key(4) == "s-001.tar:0004"
    assert dataset.encoded(1) == png(2)
    assert torch.equal(pickle.loads(pickle.dumps(dataset)).read(3), dataset.read(3))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_dialect_agrees_with_tarfile(tmp_path, kind):
    long = "deep/" * 20 + "name"
    names = {
        f"{long}.png": png(9),
        f"{long}.cls": "0",
        "été.png" if kind != tarfile.USTAR_FORMAT else "e.png": b"x" * 700,
    }
    path = tar(tmp_path / "x.tar", names, kind)
    with tarfile.open(path) as archive:
        expected = [(info.name, info.offset_data, info.size) for info in archive]
    assert [tuple(member) for member in members(path)] == expected


def test_very_long_names(tmp_path):
    long = "n" * 300
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert members(tar(tmp_path / "x.tar", {f"{long}.png": b"1"}, kind))[0].name == f"{long}.png"


def test_folders_and_links_are_no_samples(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("l.png", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "x"
            archive.addfile(info)
    assert members(path) == []


def test_labels_by_name_and_json(tmp_path):
    by_name = tar(tmp_path / "t.tar", {"a.png": png(1), "a.txt": "dog\n", "b.png": png(2), "b.txt": "cat"})
    assert classes(read_shards(by_name).train) == ("cat", "dog")
    assert labels(read_shards(by_name).train).tolist() == [1, 0]
    objects = {"a.json": {"label": "dog", "width": 4}, "b.json": {"cls": "cat"}}
    by_json = tar(
        tmp_path / "j.tar", {"a.png": png(1), "b.png": png(2)} | {k: json.dumps(v) for k, v in objects.items()}
    )
    assert labels(read_shards(by_json).train).tolist() == [1, 0]


def test_several_labels(tmp_path):
    stored = {"a.json": [0, 2], "b.json": {"labels": []}, "c.json": [1]}
    files = {f"{key}.png": png(1) for key in "abc"} | {name: json.dumps(label) for name, label in stored.items()}
    dataset = read_shards(tar(tmp_path / "m.tar", files)).train
    assert labels(dataset).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_shards_without_labels(tmp_path):
    found = read_shards(tar(tmp_path / "a.tar", {"a.png": png(1), "b.png": png(2)}))
    assert (len(found.train), found.train.schema) == (2, {})
    assert "no labels" in found.notes[0]


def test_several_labels_never_become_one_class(tmp_path):
    labels = ("red", "blue", "red|blue")
    files = {f"{name}.{kind}": png(1) if kind == "png" else name for name in labels for kind in ("png", "txt")}
    with pytest.raises(DataError, match=r"'red\|blue'"):
        read_shards(tar(tmp_path / "a.tar", files))


def test_class_names_beside_the_shards(tmp_path):
    tar(tmp_path / "a.tar", plain([1, 2]))
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    assert classes(read_shards(tmp_path).train) == ("ant", "bee")
    (tmp_path / "classes.txt").write_text("ant\n")
    with pytest.raises(DataError, match=r"0001.* 1\b"):
        read_shards(tmp_path)


def test_splits_by_name(tmp_path):
    tar(tmp_path / "train-0.tar", plain([1, 2, 3]))
    tar(tmp_path / "validation-0.tar", plain([4, 5]))
    tar(tmp_path / "extra-0.tar", plain([6]))
    found = read_shards(tmp_path)
    assert (len(found.train), len(found.val), found.test) == (3, 2, None)
    assert int(found.val.read(0).max()) == 4
    assert "ignored: 1" in found.notes[-1]


def test_a_broken_image_is_named(tmp_path):
    dataset = read_shards(tar(tmp_path / "a.tar", plain([1]) | {"0009.jpg": b"", "0009.cls": 1})).train
    with pytest.raises(BrokenImage, match=r"a.tar:0009.*empty"):
        dataset.read(1)
    (tmp_path / "a.tar").unlink()
    with pytest.raises(BrokenImage, match="No such file"):
        dataset.read(0)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": b"1", "b.png": b"1", "b.cls": "0"}, "label"),
        ({"a.png": b"1", "a.cls": "x"}, r"a.cls.*'x'"),
        ({"a.png": b"1", "a.txt": ""}, "a.txt"),
        ({"a.png": b"1", "a.json": '{"size": 3}'}, "a.json"),
        ({"a.png": b"1", "a.cls": "-1"}, "-1"),
        ({"a.txt": "1"}, "images"),
    ],
)
def test_bad_samples(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        read_shards(tar(tmp_path / "a.tar", files))


def test_a_key_twice(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a.png"), io.BytesIO())
    with pytest.raises(DataError, match=r"a.png.*twice"):
        read_shards(path)


def test_damaged_shards(tmp_path):
    path = tar(tmp_path / "a.tar", {"a.png": b"1" * 5000, "a.cls": "0"})
    whole = path.read_bytes()
    for data, message in (
        (whole[:3000], "truncated"),
        (whole[:200] + b"\xff" + whole[201:], "tar file"),
        (b"", "empty"),
        (b"\x1f\x8b" + whole, "compressed"),
        (b"garbage" * 100, "tar file"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            members(path)


def test_missing_shards_are_counted(tmp_path):
    tar(tmp_path / "s-0.tar", plain([1]))
    with pytest.raises(DataError, match=r"s-1.tar.*2 of 3 shards"):
        find_shards(str(tmp_path / "s-{0..2}.tar"))
    with pytest.raises(DataError, match="shard"):
        find_shards(str(tmp_path / "t-*.tar"))
