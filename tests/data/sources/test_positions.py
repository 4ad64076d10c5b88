"""The format of a folder, and several kinds of targets of one folder."""

import pytest
from support.annotated import coco_annotation, coco_file, depth, masks, picture, voc, voc_file, voc_object, yolo

from vitrail.data.sources.opening import find, open_data, survey
from vitrail.data.sources.positions import read_positions, read_positions_file
from vitrail.data.sources.table import Wanted
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.errors import DataError


@pytest.mark.parametrize(("make", "word"), [(voc, "Pascal VOC"), (yolo, "YOLO"), (masks, "mask"), (depth, "depth")])
def test_the_first_note_says_what_was_recognised(tmp_path, make, word):
    assert word in find(make(tmp_path)).notes[0]


def test_plain_folders_are_none_of_these(tmp_path):
    for name in ("cat", "dog"):
        picture(tmp_path / name / "0.png")
    assert read_positions(tmp_path) is None
    assert read_positions(voc(tmp_path / "voc"), kinds=("class",)) is None
    (tmp_path / "empty").mkdir()
    assert read_positions(tmp_path / "empty") is None
    (tmp_path / "a.json").write_text("{}")
    assert read_positions_file(tmp_path / "a.json") is None


@pytest.mark.parametrize(
    ("make", "kind", "task"), [(voc, "mask", "detect"), (masks, "boxes", "segment"), (masks, "depth", "segment")]
)
def test_a_folder_without_what_a_task_needs_says_what_it_has(tmp_path, make, kind, task):
    make(tmp_path)
    with pytest.raises(DataError, match=rf"has no .*--task {task}.*Expected"):
        find(tmp_path, wanted=Wanted(kinds=(kind,)))


def test_kinds_of_one_folder_are_joined_and_what_is_missing_is_marked(tmp_path):
    masks(depth(tmp_path, count=4), count=3)
    names = [f"{number}.png" for number in range(4)]
    coco_file(tmp_path / "boxes.json", names, [coco_annotation(number, number, (2, 3, 10, 12)) for number in range(4)])
    picture(tmp_path / "images" / "extra.png")
    found = find(tmp_path, wanted=Wanted(kinds=("boxes", "mask", "depth")))
    assert set(found.train.schema) == {"boxes", "mask", "depth"}
    assert len(found.train) == 4
    texts = [found.train.schema["mask"].text(value) for value in found.train.targets["mask"]]
    assert texts == ["0.png", "1.png", "2.png", "not annotated"]
    assert BoxesTarget.known(found.train.targets["boxes"]).all()
    splits = survey(tmp_path, wanted=Wanted(kinds=("boxes", "mask", "depth")), val=0.5)
    assert set(splits.val.schema) == {"boxes", "mask", "depth"}


def test_a_file_that_is_nothing_known_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(DataError, match="supported"):
        find(tmp_path / "a.json")


def test_images_alone_need_no_correct_annotations(tmp_path):
    data = voc(tmp_path, 6)
    voc_file(data / "Annotations" / "1.xml", "1.png", voc_object("cell", (50, 3, 60, 9)))
    with pytest.raises(DataError, match="outside"):
        open_data(data)
    assert len(open_data(data, wanted=Wanted(targets=False)).train) == 4
