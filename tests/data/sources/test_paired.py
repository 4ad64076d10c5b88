"""Which file belongs to which image, by folders and names."""

import pytest
from PIL import Image
from support.annotated import picture

from vitrail.data.sources.folder import scan
from vitrail.data.sources.masks import MASKS
from vitrail.data.sources.paired import find_pairs, image_size
from vitrail.errors import DataError


def pairs_of(root, names):
    for name in names:
        picture(root / name)
    found = find_pairs(root, scan(root), MASKS)
    return None if found is None else {split: sorted(map(tuple, part)) for split, part in found.splits.items()}


def test_endings_of_names_are_left_out(tmp_path):
    names = ["images/a.png", "images/b.png", "masks/a_mask.png", "masks/b_gt.png"]
    assert pairs_of(tmp_path, names) == {
        "train": [("images/a.png", "masks/a_mask.png"), ("images/b.png", "masks/b_gt.png")]
    }


def test_equal_names_in_two_splits_are_told_apart(tmp_path):
    names = [f"{split}/{kind}/1.png" for split in ("train", "val") for kind in ("images", "masks")]
    assert pairs_of(tmp_path, names) == {
        "train": [("train/images/1.png", "train/masks/1.png")],
        "val": [("val/images/1.png", "val/masks/1.png")],
    }


def test_few_pairs_among_many_files_are_a_coincidence(tmp_path):
    names = ["images/a.png", "images/b.png", *(f"masks/{number}.png" for number in range(8)), "masks/a.png"]
    assert pairs_of(tmp_path, names) is None
    assert pairs_of(tmp_path / "other", ["cat/1.png", "dog/1.png"]) is None


def test_images_to_train_on_are_needed(tmp_path):
    with pytest.raises(DataError, match="train"):
        pairs_of(tmp_path, [f"val/{kind}/{number}.png" for number in range(3) for kind in ("images", "masks")])


def test_sizes_come_from_headers(tmp_path):
    Image.new("RGB", (70, 50)).save(tmp_path / "a.jpg")
    Image.new("RGB", (300, 400)).save(tmp_path / "a.tiff")
    (tmp_path / "b.jpg").write_bytes(b"junk")
    assert image_size(tmp_path / "a.jpg") == (50, 70)
    assert image_size(tmp_path / "a.tiff") == (400, 300)
    assert image_size(tmp_path / "b.jpg") is None
    assert image_size(tmp_path / "missing.jpg") is None
