"""COCO JSON: splits by file name, categories by id, and every fault named with its annotation."""

import json

import pytest
from support.annotated import coco, coco_annotation, coco_file, picture

from vitrail.data.sources import coco as module
from vitrail.data.sources.coco import read_coco
from vitrail.data.sources.opening import find, open_data
from vitrail.data.targets.boxes_target import AREA, BOX, CLASS, IGNORE
from vitrail.errors import DataError

MANY = [(x, y, 8, 8) for x in range(12) for y in range(12)]


def whole(root, annotations, change=None):
    """One file of four images with many boxes in the first, and these annotations."""
    for number in range(4):
        picture(root / "images" / f"{number}.png")
    good = [coco_annotation(1000 + at, at % 3, box) for at, box in enumerate(MANY)]
    return coco_file(root / "all.json", [f"{number}.png" for number in range(4)], [*good, *annotations], change)


def test_splits_and_categories(tmp_path):
    splits = open_data(coco(tmp_path))
    assert splits.train.schema["boxes"].classes == ("cell", "disc")  # by id
    assert (len(splits.train), len(splits.val)) == (4, 4)
    assert splits.train.targets["boxes"][0, 0, BOX].tolist() == [2, 3, 12, 15]
    assert "COCO JSON (annotations/instances_train2017.json" in splits.notes[0]
    assert "detection: 2 classes, 8 boxes in 8 images" in splits.notes[0]
    assert splits.val.where(0).endswith("val2017/val0.png")


def test_a_file_by_its_path_and_a_folder_with_one_file(tmp_path):
    file = whole(tmp_path, [])
    for source in (file, tmp_path):
        assert len(find(source).train) == 4


def test_files_beside_their_images(tmp_path):
    for split in ("train", "valid", "test"):
        picture(tmp_path / split / "a.png")
        coco_file(tmp_path / split / "_annotations.coco.json", ["a.png"], [coco_annotation(1, 0, (1, 2, 3, 4))])
    found = find(tmp_path)
    assert (len(found.train), len(found.val), len(found.test)) == (1, 1, 1)
    assert found.test.where(0).endswith("test/a.png")


def test_crowds_are_ignored_and_areas_kept(tmp_path):
    whole(tmp_path, [coco_annotation(1, 3, (1, 2, 20, 10), iscrowd=1, area=55.5)])
    values = find(tmp_path).train.targets["boxes"][3, 0]
    assert (values[IGNORE], values[CLASS], values[AREA]) == (1, 0, 55.5)


SERIOUS = {
    "outside": (coco_annotation(7, 0, (90, 3, 5, 5)), "outside"),
    "no area": (coco_annotation(7, 0, (3, 3, 0, 5)), "area"),
    "no box": ({"id": 7, "image_id": 0, "category_id": 1}, "bbox"),
    "text": (coco_annotation(7, 0, ("a", 3, 0, 5)), "bbox"),
    "huge": (coco_annotation(7, 0, (1, 3, 10**400, 5)), "bbox"),
    "unknown category": (coco_annotation(7, 0, (3, 3, 5, 5), category=9), "category"),
    "no such image": (coco_annotation(7, 99, (3, 3, 5, 5)), "image"),
    "a list as id": (coco_annotation(7, [0], (3, 3, 5, 5)), "image"),
    "not an object": (7, "number 144"),
}


@pytest.mark.parametrize("case", SERIOUS)
def test_a_fault_is_named_with_its_annotation(tmp_path, case):
    annotation, word = SERIOUS[case]
    whole(tmp_path, [annotation])
    found = find(tmp_path)
    (finding,) = found.findings.serious
    assert finding.file.endswith("all.json")
    assert word in str(finding)
    assert finding.where in ("annotation 7", "annotation number 144")
    open_data(tmp_path, val=0.5)  # one of 145: a note
    whole(tmp_path, [annotation] * 5)
    with pytest.raises(DataError, match=r"all\.json, annotation"):
        open_data(tmp_path, val=0.5)


def test_images_that_do_not_exist_or_have_no_annotations(tmp_path):
    whole(tmp_path, [])
    (tmp_path / "images" / "1.png").unlink()
    found = find(tmp_path)
    assert len(found.train) == 3
    kinds = found.findings.by_kind()
    assert str(kinds["Annotations without an image, left out"][0]).count("1.png")
    assert kinds["Images without annotations, used as empty ones"][0].where == "image 3"


def test_duplicates_are_kept_once(tmp_path):
    whole(tmp_path, [coco_annotation(7, 3, (1, 2, 3, 4)), coco_annotation(8, 3, (1, 2, 3, 4))])
    found = find(tmp_path)
    assert [item.where for item in found.findings.items if "twice" in item.problem] == ["annotation 8"]
    assert (found.train.targets["boxes"][3, :, CLASS] >= 0).sum() == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "same name"),
        ({"categories": [{"id": 1}]}, "name"),
        ({"images": [{"id": 1, "file_name": "0.png"}] * 2}, "unique"),
        ({"images": [{"id": 1, "file_name": "elsewhere.png"}]}, "not found"),
        ({"images": [{"id": 1, "file_name": "x" * 5000}]}, "not found"),
        ({"images": {}}, "COCO"),
        ({"annotations": None}, "COCO"),
    ],
)
def test_files_that_cannot_be_read_at_all(tmp_path, change, word):
    whole(tmp_path, [], change)
    with pytest.raises(DataError, match=word):
        read_coco(tmp_path, {"train": tmp_path / "all.json"})


@pytest.mark.parametrize("text", ['{"images": [', '{"images": NaN}', "[" * 100_000, '{"images": [], "x": "\ud800"'])
def test_what_is_not_json_is_refused(tmp_path, text):
    (tmp_path / "all.json").write_text(text, errors="surrogatepass")
    with pytest.raises(DataError, match=r"all\.json"):
        read_coco(tmp_path, {"train": tmp_path / "all.json"})


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    file = whole(tmp_path, [])
    monkeypatch.setattr(module, "LIMIT", 100)
    with pytest.raises(DataError, match="larger"):
        read_coco(tmp_path, {"train": file})


def test_other_json_files_are_left_alone(tmp_path):
    for name in ("cat", "dog"):
        for number in range(4):
            picture(tmp_path / name / f"{number}.png")
    (tmp_path / "about.json").write_text(json.dumps({"made": "by hand"}))
    assert "label" in find(tmp_path).train.schema


def test_splits_with_other_categories_are_refused(tmp_path):
    coco(tmp_path)
    coco_file(
        tmp_path / "annotations" / "instances_val2017.json",
        ["val0.png"],
        [],
        {"categories": [{"id": 1, "name": "other"}]},
    )
    with pytest.raises(DataError, match="categories"):
        find(tmp_path)


def test_boxes_are_checked_against_the_image_where_its_size_is_not_given(tmp_path):
    boxes = [coco_annotation(7, 3, (1, 2, 3, 4)), coco_annotation(8, 3, (500, 2, 3, 4))]
    whole(tmp_path, boxes, {"images": [{"id": number, "file_name": f"{number}.png"} for number in range(4)]})
    (finding,) = find(tmp_path).findings.serious
    assert finding.where == "annotation 8"
    assert "40 x 30" in finding.problem
