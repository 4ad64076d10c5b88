"""Folders of images: classes, splits, order, what is left out, and what is refused."""

import pytest
import torch
from PIL import Image
from support.single_target import classes, labels

from vitrail.data.sources.folder import read_folder, scan
from vitrail.errors import BrokenImage, DataError


def tree(root, *paths):
    """Images (and other files) of the given names; each has its own shade."""
    for number, path in enumerate(paths):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".png", ".jpg", ".JPG"):
            Image.new("RGB", (4, 3), (number, 0, 0)).save(file)
        else:
            file.write_text("x")
    return root


def test_class_is_the_folder_name(tmp_path):
    found = read_folder(tree(tmp_path, "dog/2.png", "dog/10.png", "cat/deep/er/1.JPG", "cat/0.png"))
    assert classes(found.train) == ("cat", "dog")
    assert found.train.paths == ["cat/0.png", "cat/deep/er/1.JPG", "dog/2.png", "dog/10.png"]
    assert labels(found.train).tolist() == [0, 0, 1, 1]
    assert found.train.read(3)[:, 0, 0].tolist() == [1, 0, 0]
    assert found.train.where(2) == str(tmp_path / "dog/2.png")
    assert found.train.encoded(2) == (tmp_path / "dog/2.png").read_bytes()
    assert found.val is None


def test_splits_are_recognised(tmp_path):
    root = tree(
        tmp_path,
        *(f"{split}/{name}/1.png" for split in ("Training", "validation", "test") for name in ("a", "b")),
        "validation/c/1.png",
        "docs/shot.png",
        "Training/loose.png",
    )
    found = read_folder(root)
    assert [len(part) for part in (found.train, found.val, found.test)] == [2, 3, 2]
    assert classes(found.val) == classes(found.train) == ("a", "b", "c")
    assert found.val.where(2) == str(root / "validation/c/1.png")
    notes = " ".join(found.notes)
    assert "test 2, Training 2, validation 3" in notes
    assert "outside of class folders" in notes
    assert "docs" in notes


def test_a_class_may_be_called_test(tmp_path):
    found = read_folder(tree(tmp_path, "test/1.png", "control/1.png"))
    assert classes(found.train) == ("control", "test")


def test_hidden_and_other_files(tmp_path):
    root = tree(tmp_path, "a/1.png", "b/1.png", "a/.hidden.png", ".git/x.png", "__MACOSX/a/1.png", "a/notes.txt")
    found = read_folder(root)
    assert len(found.train) == 2
    assert "a/notes.txt" in " ".join(found.notes)


def test_folders_without_an_image_are_noted(tmp_path):
    root = tree(tmp_path / "plain", "a/1.png", "b/1.png", "notes/x.txt")
    for name in ("dog/deep", ".hidden", "__MACOSX"):
        (root / name).mkdir(parents=True)
    found = read_folder(root)
    assert (found.empty, classes(found.train)) == (("dog", "notes"), ("a", "b"))
    assert any("dog, notes" in note for note in found.notes)
    assert read_folder(tree(tmp_path / "full", "a/1.png", "b/1.png")).empty == ()


def test_splits_and_their_folders_without_an_image_are_noted(tmp_path):
    root = tree(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png")
    for name in ("val", "train/dog", "test/b/deep"):
        (root / name).mkdir()
    found = read_folder(root)
    assert (found.empty, found.val) == (("train/dog", "val"), None)
    assert any("train/dog, val" in note for note in found.notes)


def test_links_in_a_circle_end(tmp_path):
    root = tree(tmp_path, "a/1.png", "b/1.png")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "2.png").symlink_to(root / "b" / "1.png")
    (root / "b" / "3.png").symlink_to(root / "nowhere.png")
    found = scan(root)
    assert found.images == ["a/1.png", "b/1.png", "b/2.png", "b/3.png"]
    dataset = read_folder(root).train
    with pytest.raises(BrokenImage, match=r"b/3.png.*No such file"):
        dataset.read(3)


def test_fingerprint_notices_files_and_labels(tmp_path):
    root = tree(tmp_path, "a/1.png", "b/1.png")
    first = read_folder(root).train.fingerprint
    assert read_folder(root).train.fingerprint == first
    Image.new("RGB", (9, 9)).save(root / "a/1.png")
    second = read_folder(root).train.fingerprint
    (root / "b").rename(root / "c")
    assert len({first, second, read_folder(root).train.fingerprint}) == 3


def test_odd_names(tmp_path):
    dataset = read_folder(tree(tmp_path, "été 图/ä ö.png", "b c/1.png")).train
    assert classes(dataset) == ("b c", "été 图")
    assert dataset.read(1).shape == (3, 3, 4)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ((), "folder"),
        (("a/readme.txt",), "1 other file"),
        (
            ("data/cat/1.png", "data/dog/1.png"),
            r"'data'.*2 folders",
        ),
        (("train/a/1.png", "val/1.png"), "val"),
        (("train/a/1.png", "training/a/1.png"), "train, training"),
    ],
)
def test_bad_folders_get_one_sentence(tmp_path, paths, message):
    with pytest.raises(DataError, match=message) as caught:
        read_folder(tree(tmp_path, *paths))
    assert str(tmp_path) in str(caught.value)


def test_a_flat_folder_is_unlabelled(tmp_path):
    found = read_folder(tree(tmp_path, "2.png", "10.png", "notes.txt"))
    assert (found.train.schema, found.train.targets) == ({}, {})
    assert found.train.paths == ["2.png", "10.png"]
    assert "2 images without labels" in found.notes[0]
    assert "notes.txt" in found.notes[1]


def test_flat_splits_are_unlabelled(tmp_path):
    found = read_folder(tree(tmp_path, "train/1.png", "train/2.png", "val/1.png"))
    assert [len(part) for part in (found.train, found.val)] == [2, 1]
    assert found.train.schema == found.val.schema == {}
    assert "without labels" in found.notes[0]


def test_labels_are_int64(tmp_path):
    assert labels(read_folder(tree(tmp_path, "a/1.png", "b/1.png")).train).dtype == torch.int64
