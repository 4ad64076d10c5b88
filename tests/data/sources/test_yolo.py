"""YOLO: relative boxes in text files, classes and splits in YAML, and every fault named with its line."""

import pytest
import torch
from support.annotated import picture, yolo

from vitrail.data.sources.opening import find, open_data
from vitrail.data.sources.yolo import label_file
from vitrail.data.targets.boxes_target import BOX, CLASS
from vitrail.errors import DataError


def test_boxes_are_in_pixels_and_classes_in_the_order_of_the_file(tmp_path):
    splits = open_data(yolo(tmp_path))
    assert (len(splits.train), len(splits.val)) == (4, 4)
    assert splits.train.schema["boxes"].classes == ("cell", "disc")
    torch.testing.assert_close(splits.train.targets["boxes"][1, 0, BOX], torch.tensor([10.0, 12.0, 30.0, 18.0]))
    assert splits.train.targets["boxes"][:, 0, CLASS].tolist() == [0, 1, 0, 1]
    assert "YOLO (data.yaml); detection: 2 classes, 8 boxes in 8 images" in splits.notes[0]


def test_the_yaml_file_can_be_named(tmp_path):
    assert len(find(yolo(tmp_path) / "data.yaml").train) == 4


def test_a_list_of_names_and_splits_without_yaml(tmp_path):
    yolo(tmp_path)
    (tmp_path / "data.yaml").unlink()
    with pytest.raises(DataError, match=r"classes\.txt"):
        find(tmp_path)
    (tmp_path / "classes.txt").write_text("cell\ndisc\n")
    found = find(tmp_path)
    assert (len(found.train), len(found.val)) == (4, 4)


def test_lists_of_images_and_paths_one_folder_too_high(tmp_path):
    yolo(tmp_path)
    (tmp_path / "few.txt").write_text("images/train/train0.png\nimages/train/train2.png\n")
    (tmp_path / "data.yaml").write_text("train: few.txt\nval: ../images/val\nnames: [cell, disc]\nnc: 2\n")
    found = find(tmp_path)
    assert (len(found.train), len(found.val)) == (2, 4)


def test_outlines_become_boxes(tmp_path):
    values = find(yolo(tmp_path, {"train0": "1 0.1 0.2 0.5 0.9 0.3 0.4"})).train.targets["boxes"]
    torch.testing.assert_close(values[0, 0, BOX], torch.tensor([4.0, 6.0, 20.0, 27.0]))


SERIOUS = {
    "unknown class": ("2 0.5 0.5 0.1 0.1", "class"),
    "negative class": ("-1 0.5 0.5 0.1 0.1", "class"),
    "outside": ("0 1.5 0.5 0.1 0.1", "outside"),
    "no area": ("0 0.5 0.5 0.0 0.1", "area"),
    "text": ("0 0.5 a 0.1 0.1", "not: class"),
    "too few": ("0 0.5 0.5", "not: class"),
    "not finite": ("0 nan 0.5 0.1 0.1", "impossible"),
}


@pytest.mark.parametrize("case", SERIOUS)
def test_a_fault_is_named_with_its_line(tmp_path, case):
    line, word = SERIOUS[case]
    found = find(yolo(tmp_path, {"train2": f"0 0.5 0.5 0.2 0.2\n\n{line}\n"}))
    (finding,) = found.findings.serious
    assert finding.file.endswith("labels/train/train2.txt")
    assert finding.where == "line 3"
    assert word in finding.problem
    with pytest.raises(DataError, match=r"train2\.txt, line 3"):
        open_data(tmp_path)


def test_images_without_labels_and_labels_without_images(tmp_path):
    yolo(tmp_path, {"train1": ""})
    (tmp_path / "labels" / "train" / "train3.txt").unlink()
    (tmp_path / "labels" / "train" / "ghost.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    found = find(tmp_path)
    kinds = found.findings.by_kind()
    assert [item.file.rsplit("/", 1)[1] for item in kinds["Images without annotations, used as empty ones"]] == [
        "train1.png",
        "train3.png",
    ]
    assert kinds["Annotations without an image, left out"][0].file.endswith("ghost.txt")
    assert len(found.train) == 4


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("train: images/train\nnames: [a, a]", "different"),
        ("train: images/train\nnames: {0: a, 2: b}", "numbered"),
        ("train: images/train\nnames: 3", "names"),
        ("train: images/train\nnames: [a]\nnc: 2", "nc"),
        ("train: images/nowhere\nnames: [a]", "nowhere"),
        (f"path: {'x' * 5000}\ntrain: {'y' * 5000}\nnames: [a]", "yyy"),
    ],
)
def test_a_yaml_file_that_cannot_be_used(tmp_path, text, word):
    yolo(tmp_path)
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(DataError, match=word):
        find(tmp_path)


def test_a_yaml_file_of_something_else_is_left_alone(tmp_path):
    for name in ("cat", "dog"):
        picture(tmp_path / name / "0.png")
    (tmp_path / "data.yaml").write_text("recipe: [a\n")
    assert "label" in find(tmp_path).train.schema


def test_where_labels_are(tmp_path):
    assert label_file(tmp_path / "images" / "train" / "a.jpg") == tmp_path / "labels" / "train" / "a.txt"
    assert label_file(tmp_path / "train" / "a.jpg") == tmp_path / "train" / "a.txt"
