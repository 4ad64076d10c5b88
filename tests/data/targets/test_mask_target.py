"""Masks: a class for each pixel."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.targets import Column, MaskTarget
from vitrail.data.targets.mask_target import IGNORE, look_at_masks, mask_classes, read_mask
from vitrail.errors import BrokenImage, DataError


def save(path: Path, pixels, mode: str | None = None) -> Path:
    image = Image.fromarray(np.asarray(pixels))
    (image if mode is None else image.convert(mode)).save(path)
    return path


def read(tmp_path: Path, *masks):
    """The target and values of a table of these masks."""
    cells = [save(tmp_path / f"{at}.png", mask).name for at, mask in enumerate(masks)]
    column = Column(tmp_path / "t.csv", "mask", cells, range(2, len(cells) + 2))
    return MaskTarget.read([column])


def test_classes_are_values_and_255_is_ignored(tmp_path):
    target, values, _ = read(tmp_path, np.uint8([[0, 1], [2, 255]]), np.uint8([[0, 0], [0, 0]]))
    assert target.classes == ("class 0", "class 1", "class 2")
    assert target.load(values[0]).tolist() == [[0, 1], [2, IGNORE]]


def test_masks_of_0_and_255_have_two_classes(tmp_path):
    target, values, _ = read(tmp_path, np.uint8([[0, 255], [0, 0]]))
    assert target.classes == ("background", "foreground")
    assert target.load(values[0]).tolist() == [[0, 1], [0, 0]]


def test_void_is_ignored_and_does_not_count_as_a_class():
    classes, table = mask_classes({0, 1, 2, 3}, ["sky", "Void", "road"])
    assert classes == ("sky", "road")
    assert list(table[:4]) == [0, IGNORE, 1, IGNORE]


@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16"])
def test_index_palette_and_deep_masks_hold_the_same_numbers(tmp_path, mode):
    pixels = np.uint8([[0, 1], [1, 0]])
    if mode == "P":
        image = Image.fromarray(pixels).convert("P")
        image.putdata([0, 1, 1, 0])
        image.putpalette([9, 9, 9, 200, 0, 0])
        image.save(tmp_path / "m.png")
    elif mode == "I;16":
        save(tmp_path / "m.png", pixels.astype(np.uint16))
    else:
        save(tmp_path / "m.png", pixels * (255 if mode == "1" else 1), None if mode == "L" else mode)
    assert read_mask(tmp_path / "m.png").tolist() == pixels.tolist()


@pytest.mark.parametrize(
    ("pixels", "word"),
    [(np.zeros((2, 2, 3), np.uint8), "colours"), (np.full((2, 2), 300, np.uint16), "300")],
    ids=["colours", "large numbers"],
)
def test_masks_of_colours_or_large_numbers_are_refused(tmp_path, pixels, word):
    path = save(tmp_path / "m.png", pixels)
    with pytest.raises(BrokenImage, match=word):
        read_mask(path)
    assert word in look_at_masks([path])[0].error
    with pytest.raises(DataError, match="line 2"):
        MaskTarget.read([Column(tmp_path / "t.csv", "mask", ["m.png"], [2])])


def test_an_image_without_a_mask_is_all_ignored(tmp_path):
    save(tmp_path / "m.png", np.uint8([[0, 1]]))
    target, values, _ = MaskTarget.read([Column(tmp_path / "t.csv", "mask", ["m.png", ""], [2, 3])])
    identity = torch.eye(3)[None, :2]
    assert (target.move(target.load(values[1])[None], identity, (4, 4)) == IGNORE).all()
    assert target.text(values[1]) == "not annotated"


def test_aligned_masks_have_the_numbers_of_the_other_target(tmp_path):
    target, values, _ = read(tmp_path, np.uint8([[0, 1], [2, 255]]))
    other = MaskTarget(classes=("class 2", "class 1", "class 0", "more"))
    assert other.load(target.align(values, other, name="data")[0]).tolist() == [[2, 1], [0, IGNORE]]


def test_text_drawing_and_audit(tmp_path):
    target, values, _ = read(tmp_path, np.uint8([[0, 1], [1, 1]]), np.uint8([[0, 0], [255, 0]]))
    pixels = target.load(values[0])
    assert target.text(pixels) == "class 1 75 %, class 0 25 %"
    assert target.text(values[0]) == "0.png"
    grey = torch.full((3, 2, 2), 100, dtype=torch.uint8)
    assert torch.equal(target.draw(grey, values[0]), target.draw(grey, pixels))
    assert target.draw(grey, values[1])[:, 1, 0].tolist() == [100, 100, 100]  # ignored: as it was
    table = target.audit({"train": values, "val": values[1:]}).sections[0]
    assert table.rows[1] == {
        "class": "class 1", "train images": 1, "train pixels": 3 / 7, "val images": 0, "val pixels": 0.0,
    }  # fmt: skip


def test_an_empty_class_is_advice(tmp_path):
    target, values, _ = read(tmp_path, np.uint8([[0, 1]]), np.uint8([[0, 0]]))
    assert any("'class 1'" in advice for advice in target.audit({"train": values, "val": values[1:]}).advice)


def test_a_table_finds_the_names_beside_the_folder_of_masks(tmp_path):
    (tmp_path / "data" / "masks").mkdir(parents=True)
    (tmp_path / "data" / "classes.txt").write_text("sky\nroad\n")
    save(tmp_path / "data" / "masks" / "0.png", np.uint8([[0, 1], [1, 0]]))
    column = Column(tmp_path / "t.csv", "mask", ["data/masks/0.png"], range(2, 3))
    target, _, _ = MaskTarget.read([column])
    assert target.classes == ("sky", "road")
    (tmp_path / "data" / "classes.txt").write_text("sky\n")
    target, _, notes = MaskTarget.read([column])
    assert target.classes == ("class 0", "class 1")
    assert "not used" in notes[-1]
