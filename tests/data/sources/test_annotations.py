"""Boxes of any format: checked, cut off, told apart."""

import pytest

from vitrail.data.sources.annotations import Annotated, Collector, boxes_found, nearest_path, relative
from vitrail.data.targets.boxes_target import Box
from vitrail.errors import DataError


def checked(*corners, size=(40, 30)):
    collector = Collector()
    given = [(f"line {at}", box, Box(box, "cell")) for at, box in enumerate(corners)]
    return [box.corners for box in collector.boxes(given, size, "a.txt")], collector


def test_boxes_inside_are_kept_as_they_are():
    boxes, collector = checked((0, 0, 40, 30), (1.5, 2.5, 3, 4))
    assert boxes == [(0, 0, 40, 30), (1.5, 2.5, 3, 4)]
    assert (collector.total, collector.items) == (2, [])


def test_half_a_pixel_over_the_edge_is_rounding():
    boxes, collector = checked((-0.5, 0, 40.5, 30))
    assert boxes == [(0, 0, 40, 30)]
    assert collector.items == []


def test_without_a_size_edges_are_not_known():
    boxes, collector = checked((-5, 0, 400, 300), size=None)
    assert boxes == [(-5, 0, 400, 300)]
    assert collector.items == []


def test_no_image_or_none_to_train_on(tmp_path):
    with pytest.raises(DataError, match="no image"):
        boxes_found(tmp_path, {"train": []}, Collector(), classes=None, format_name="COCO")
    part = [Annotated("a.png", [Box((0, 0, 1, 1), "cell")])]
    with pytest.raises(DataError, match="train"):
        boxes_found(tmp_path, {"val": part}, Collector(), classes=None, format_name="COCO")


def test_paths(tmp_path):
    assert relative(tmp_path / "a" / "b.png", tmp_path) == "a/b.png"
    assert relative(tmp_path / "b.png", tmp_path / "a") == str(tmp_path / "b.png")
    assert nearest_path(["x/train/1.png", "x/val/1.png"], "x/val/1.xml") == "x/val/1.png"
    assert nearest_path([], "x.xml") is None
