"""Masks beside images: layouts, class names, and every fault named with its file."""

import numpy as np
import pytest
from PIL import Image
from support.annotated import SIZE, masks, picture, voc

from vitrail.data.sources.opening import find, open_data
from vitrail.data.sources.table import Wanted
from vitrail.errors import DataError


def value_counts(dataset, index=0):
    pixels = dataset.schema["mask"].load(dataset.targets["mask"][index])
    return sorted(set(pixels.flatten().tolist()))


LAYOUTS = {
    "images and masks": [("images", "masks")],
    "splits inside": [("images/train", "masks/train"), ("images/val", "masks/val")],
    "splits outside": [("train/images", "train/labels"), ("valid/images", "valid/labels")],
    "annot": [("train", "trainannot"), ("val", "valannot"), ("test", "testannot")],
    "training": [("images/training", "annotations/training"), ("images/validation", "annotations/validation")],
    "pascal": [("JPEGImages", "SegmentationClass")],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path, layout):
    for image_folder, mask_folder in LAYOUTS[layout]:
        masks(tmp_path, image_folder, mask_folder)
    found = find(tmp_path)
    parts = [part for part in (found.train, found.val, found.test) if part is not None]
    assert len(parts) == len(LAYOUTS[layout])
    assert [len(part) for part in parts] == [4] * len(parts)
    assert found.train.schema["mask"].classes == ("class 0", "class 1", "class 2")
    assert value_counts(found.train) == [0, 1, 2, 255]
    assert "segmentation: 3 classes" in found.notes[0]
    assert LAYOUTS[layout][0][1] in found.notes[0]


def test_masks_in_the_same_folder_end_in_mask(tmp_path):
    masks(tmp_path, "a", "b")
    for number in range(4):
        (tmp_path / "b" / f"{number}.png").rename(tmp_path / "a" / f"{number}_mask.png")
    (tmp_path / "b").rmdir()
    assert len(find(tmp_path).train) == 4


def test_lists_of_pascal_are_the_splits(tmp_path):
    masks(tmp_path, "JPEGImages", "SegmentationClass")
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("0\n1\n")
    (lists / "val.txt").write_text("3\n")
    found = find(tmp_path)
    assert (len(found.train), len(found.val)) == (2, 1)


def test_names_come_from_a_file_and_void_is_ignored(tmp_path):
    masks(tmp_path)
    (tmp_path / "classes.txt").write_text("road\nvoid\nsky\n")
    found = find(tmp_path)
    assert found.train.schema["mask"].classes == ("road", "sky")
    assert value_counts(found.train) == [0, 1, 255]
    assert any("void is ignored" in note for note in found.notes)


def test_camvid_is_known_by_its_folders_and_values(tmp_path):
    for split in ("train", "val"):
        picture(tmp_path / split / "0.png")
        picture(tmp_path / split / "1.png")
        folder = tmp_path / f"{split}annot"
        folder.mkdir()
        for number in range(2):
            pixels = np.arange(SIZE[0] * SIZE[1], dtype=np.int64).reshape(SIZE[::-1]) % 12
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    found = find(tmp_path)
    assert found.train.schema["mask"].classes[0] == "sky"
    assert len(found.train.schema["mask"].classes) == 11
    assert any("CamVid" in note for note in found.notes)
    assert value_counts(found.train) == [*range(11), 255]


def test_a_stray_value_does_not_hide_camvid(tmp_path):
    for split, count in (("train", 6), ("val", 2)):
        (tmp_path / f"{split}annot").mkdir()
        for number in range(count):
            picture(tmp_path / split / f"{number}.png")
            pixels = np.arange(SIZE[0] * SIZE[1], dtype=np.int64).reshape(SIZE[::-1]) % 12
            pixels[0, 0] = 77 if (split, number) == ("train", 4) else 0
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{split}annot" / f"{number}.png")
    found = find(tmp_path)
    assert len(found.train.schema["mask"].classes) == 11
    (fault,) = found.findings.items
    assert "4.png" in fault.file
    assert "77" in fault.problem


def test_values_that_may_be_mistakes_are_named(tmp_path):
    broken(masks(tmp_path, count=8), 3, np.full(SIZE[::-1], 77, np.uint8))
    note = next(note for note in find(tmp_path).notes if "numbered by value" in note)
    assert "77 is in" in note
    assert "3.png alone" in note


def broken(root, number, pixels):
    """Replaces a mask."""
    Image.fromarray(pixels).save(root / "masks" / f"{number}.png")


FAULTS = {
    "another size": (np.zeros((5, 6), np.uint8), "6 x 5"),
    "colours": (np.zeros((*SIZE[::-1], 3), np.uint8), "colours"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_mask_that_cannot_be_used_is_named(tmp_path, case):
    pixels, word = FAULTS[case]
    broken(masks(tmp_path, count=8), 3, pixels)
    found = find(tmp_path)
    (finding,) = found.findings.serious
    assert finding.file.endswith("masks/3.png")
    assert word in finding.problem
    assert len(found.train) == 7
    with pytest.raises(DataError, match=r"masks/3\.png"):
        open_data(tmp_path)


def test_unknown_values_are_named_and_ignored(tmp_path):
    masks(tmp_path, count=8)
    (tmp_path / "classes.txt").write_text("road\ncar\nsky\n")
    pixels = np.zeros(SIZE[::-1], np.uint8)
    pixels[0, :2] = 7, 9
    broken(tmp_path, 3, pixels)
    found = find(tmp_path)
    (finding,) = found.findings.serious
    assert "7, 9" in finding.problem
    assert value_counts(found.train, 3) == [0, 255]
    with pytest.raises(DataError, match=r"masks/3\.png"):
        open_data(tmp_path)


def test_a_list_of_other_classes_is_not_used_and_it_is_said(tmp_path):
    masks(tmp_path)  # of the classes 0, 1 and 2
    (tmp_path / "classes.txt").write_text("cell\ndisc\n")
    found = find(tmp_path)
    assert found.train.schema["mask"].classes == ("class 0", "class 1", "class 2")
    (note,) = [note for note in found.notes if "not used" in note]
    assert "classes.txt" in note
    assert "list 3 classes" in note
    assert not found.findings.items


def test_a_list_that_fits_is_found_behind_one_that_does_not(tmp_path):
    masks(tmp_path)
    (tmp_path / "classes.txt").write_text("cell\n")
    (tmp_path / "masks" / "classes.txt").write_text("road\ncar\nsky\n")
    found = find(tmp_path)
    assert found.train.schema["mask"].classes == ("road", "car", "sky")
    assert sum("not used" in note for note in found.notes) == 1


def test_masks_of_0_and_255_have_two_names_or_none(tmp_path):
    masks(tmp_path)
    for number in range(4):
        broken(tmp_path, number, np.uint8([[0, 255]]).repeat(SIZE[1], 0).repeat(SIZE[0] // 2, 1))
    for names, classes in (("plate\nhole\n", ("plate", "hole")), ("a\nb\nc\n", ("background", "foreground"))):
        (tmp_path / "classes.txt").write_text(names)
        found = find(tmp_path)
        assert found.train.schema["mask"].classes == classes
        assert value_counts(found.train) == [0, 1]
        assert any("not used" in note for note in found.notes) == (classes[0] == "background")


def test_images_without_masks_and_masks_without_images(tmp_path):
    masks(tmp_path, count=8)
    (tmp_path / "masks" / "2.png").unlink()
    (tmp_path / "images" / "5.png").unlink()
    found = find(tmp_path)
    assert len(found.train) == 6
    assert [item.file.rsplit("/", 2)[1:] for item in found.findings.items] == [["masks", "5.png"], ["images", "2.png"]]
    assert [item.serious for item in found.findings.items] == [True, False]


def test_a_file_of_names_must_be_right(tmp_path):
    masks(tmp_path)
    (tmp_path / "classes.txt").write_text("road\nroad\n")
    with pytest.raises(DataError, match="different"):
        find(tmp_path)


def test_class_folders_called_mask_are_classes(tmp_path):
    for name in ("mask", "no_mask"):
        for number in range(4):
            picture(tmp_path / name / f"{number}.png")
    assert found_classes(tmp_path) == ("mask", "no_mask")


def found_classes(root):
    return find(root).train.schema["label"].classes


def test_a_task_chooses_between_boxes_and_masks(tmp_path):
    voc(tmp_path, 4, split=False)
    masks(tmp_path, "JPEGImages", "SegmentationClass", count=4)
    found = find(tmp_path)
    assert set(found.train.schema) == {"boxes"}
    assert any("--task segment" in note for note in found.notes)
    assert set(find(tmp_path, wanted=Wanted(kinds=("mask",))).train.schema) == {"mask"}


def test_masks_of_colours_alone_are_refused_with_their_names(tmp_path):
    masks(tmp_path)
    for path in (tmp_path / "masks").iterdir():
        Image.open(path).convert("RGB").save(path)
    with pytest.raises(DataError, match=r"masks/0\.png.*colours"):
        find(tmp_path)
