"""Pascal VOC: splits, pixels counted from 1, and every fault named with its file and line."""

import pytest
from support.annotated import SIZE, picture, voc, voc_file, voc_object

from vitrail.data.sources.opening import find, open_data
from vitrail.data.sources.voc import read_voc
from vitrail.data.targets.boxes_target import BOX, CLASS, IGNORE
from vitrail.errors import DataError


def test_lists_are_the_splits_and_the_note_says_what_was_recognised(tmp_path):
    splits = open_data(voc(tmp_path, 6))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [4, 1, 1]
    assert splits.train.schema["boxes"].classes == ("cell", "disc")
    assert "Pascal VOC (6 XML files" in splits.notes[0]
    assert "detection: 2 classes, 9 boxes in 6 images (train 4, val 1, test 1)" in splits.notes[0]
    assert splits.train.where(0).endswith("0.png")


def test_coordinates_count_from_1_unless_some_are_0(tmp_path):
    voc(tmp_path, 4)
    found = read_voc(tmp_path)
    assert found.train.targets["boxes"][0, 0, BOX].tolist() == [1, 2, 20, 25]
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", voc_object("cell", (0, 5, 10, 10)))
    found = read_voc(tmp_path)
    assert found.train.targets["boxes"][0, 0, BOX].tolist() == [2, 3, 20, 25]


def test_split_folders_without_lists(tmp_path):
    for split in ("train", "valid"):
        for number in range(2):
            picture(tmp_path / split / f"{number}.jpg")
            objects = voc_object("cell", (1, 1, 9 + number, 9))
            voc_file(tmp_path / split / f"{number}.xml", f"{number}.jpg", objects)
    found = find(tmp_path)
    assert (len(found.train), len(found.val)) == (2, 2)
    assert found.val.where(1).endswith("valid/1.jpg")


def test_without_splits_everything_is_to_train(tmp_path):
    found = read_voc(voc(tmp_path, 4, split=False))
    assert (len(found.train), found.val) == (4, None)


def test_difficult_objects_are_ignored(tmp_path):
    voc(tmp_path, 4)
    hard = voc_object("cell", (1, 1, 9, 9), "<difficult>1</difficult>")
    voc_file(tmp_path / "Annotations" / "0.xml", "0.png", hard)
    values = read_voc(tmp_path).train.targets["boxes"]
    assert values[0, 0, IGNORE] == 1
    assert values[0, 0, CLASS] == 0


SERIOUS = {
    "outside": (voc_object("cell", (50, 3, 60, 9)), "outside"),
    "no area": (voc_object("cell", (9, 3, 8, 9)), "area"),
    "not a number": (voc_object("cell", ("x", 3, 8, 9)), "bndbox"),
    "infinite": (voc_object("cell", (1, 3, "1e999", 9)), "impossible"),
    "no name": (voc_object("", (1, 3, 8, 9)), "name"),
}


@pytest.mark.parametrize("case", SERIOUS)
def test_a_box_that_cannot_be_used_is_named_with_its_line(tmp_path, case):
    objects, word = SERIOUS[case]
    voc(tmp_path, 6)
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", voc_object("cell", (2, 3, 9, 9)) + objects)
    found = find(tmp_path)
    (finding,) = found.findings.serious
    assert finding.file.endswith("1.xml")
    assert finding.where == "line 8"
    assert word in finding.problem
    assert any(word in note and "1.xml, line 8" in note for note in found.notes)
    with pytest.raises(DataError, match=r"1\.xml, line 8"):
        open_data(tmp_path)


def test_faults_that_do_not_stop_training_are_notes(tmp_path):
    voc(tmp_path, 6)
    twice = voc_object("cell", (2, 3, 9, 9)) * 2 + voc_object("cell", (30, 20, 45, 33))
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", twice)
    picture(tmp_path / "JPEGImages" / "lonely.png")
    splits = open_data(tmp_path)
    notes = "\n".join(splits.notes)
    assert "Duplicate boxes, of which one is kept: 1" in notes
    assert "partly outside" in notes
    assert "lonely.png" in notes
    values = splits.train.targets["boxes"][1]
    assert (values[:, CLASS] >= 0).sum() == 2
    assert values[1, BOX].tolist() == [29, 19, *SIZE]


def test_annotations_without_an_image_are_named(tmp_path):
    voc(tmp_path, 6)
    voc_file(tmp_path / "Annotations" / "ghost.xml", "ghost.png", voc_object("cell", (2, 3, 9, 9)))
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n2\n3\nnobody\n")
    found = find(tmp_path)
    assert [(item.file.rsplit("/", 1)[1], item.where) for item in found.findings.serious] == [
        ("ghost.xml", ""),
        ("train.txt", "line 5"),
    ]
    with pytest.raises(DataError, match="ghost"):
        open_data(tmp_path)


def test_a_damaged_file_among_good_ones_is_named(tmp_path):
    voc(tmp_path, 6)
    (tmp_path / "Annotations" / "0.xml").write_text("<annotation><object></annotation>")
    found = find(tmp_path)
    assert len(found.train) == 3
    assert "mismatched" in str(found.findings.serious[0])
    with pytest.raises(DataError, match=r"0\.xml"):
        open_data(tmp_path)


def test_a_single_fault_among_many_boxes_does_not_stop_training(tmp_path):
    voc(tmp_path, 6)
    many = "".join(voc_object("cell", (1 + x, 1 + y, 9 + x, 9 + y)) for x in range(12) for y in range(12))
    voc_file(tmp_path / "Annotations" / "0.xml", "0.png", many + voc_object("cell", (9, 9, 8, 12)))
    splits = open_data(tmp_path)
    assert splits.findings.refusal() is None
    assert splits.train.schema["boxes"].most == 144


def test_boxes_are_checked_against_the_image_where_its_size_is_not_given(tmp_path):
    voc(tmp_path, 6)
    outside = voc_object("cell", (2, 3, 9, 9)) + voc_object("cell", (500, 3, 510, 9))
    voc_file(tmp_path / "Annotations" / "1.xml", "1.png", outside, size=(0, 0))
    (finding,) = find(tmp_path).findings.serious
    assert finding.where.startswith("line ")
    assert "40 x 30" in finding.problem


def test_the_image_of_a_damaged_file_is_said_to_have_one(tmp_path):
    voc(tmp_path, 6)
    (tmp_path / "Annotations" / "0.xml").write_text("<annotation>")
    (item,) = find(tmp_path).findings.by_kind()["Images without annotations, not used"]
    assert item.file.endswith("0.png")
    assert "cannot be used" in item.problem
