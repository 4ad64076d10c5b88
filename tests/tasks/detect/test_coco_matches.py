"""Boxes matched once give pycocotools' curves, for images drawn once and for copies of images."""

import contextlib
import io

import numpy as np
import pytest
from support.boxes_found import found_boxes

from vitrail.data.targets.boxes_target import IGNORE
from vitrail.errors import DataError
from vitrail.tasks.detect.coco_matches import Matches, evaluated
from vitrail.tasks.detect.coco_metrics import BoxMeter

pytest.importorskip("pycocotools")
CLASSES = ("cat", "dog", "eel")


def curves_of_pycocotools(images):
    made = evaluated(images, len(CLASSES))
    with contextlib.redirect_stdout(io.StringIO()):
        made.accumulate()
    return made.eval["precision"][..., -1], made.eval["recall"][..., -1]


def meter_of(images):
    meter = BoxMeter("boxes", CLASSES, 0.5)
    meter.images = list(images)
    return meter


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(other[name]), err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_each_image_once_is_pycocotools_to_the_last_bit(seed):
    images = found_boxes(12, seed=seed)
    images[0] = images[0]._replace(true=images[0].true[:0])  # nothing to find
    images[1] = images[1]._replace(boxes=images[1].boxes[:0], scores=images[1].scores[:0], labels=images[1].labels[:0])
    images[2].true[0, 5] = 1  # to be ignored
    found = Matches.of(images, len(CLASSES)).curves(np.ones(12, dtype=np.int64))
    for ours, theirs in zip(found, curves_of_pycocotools(images), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (found[0] == -1).any(), "no eel of some size"


def test_ties_crowds_and_more_boxes_than_are_read_are_pycocotools_to_the_last_bit():
    images = [one._replace(scores=one.scores.round(1)) for one in found_boxes(10, most=130)]
    for image in images[::2]:
        image.true[::4, IGNORE] = 1
    assert all(len(image.scores) > 100 for image in images)
    found = Matches.of(images, len(CLASSES)).curves(np.ones(10, dtype=np.int64))
    for ours, theirs in zip(found, curves_of_pycocotools(images), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_copies_of_images_are_pycocotools_of_the_copies():
    images = found_boxes(8)
    times = np.array([0, 1, 2, 3, 0, 0, 1, 1])
    found = Matches.of(images, len(CLASSES)).curves(times)
    copies = [image for image, count in zip(images, times, strict=True) for _ in range(count)]
    for ours, theirs in zip(found, curves_of_pycocotools(copies), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_meters_are_repeated_without_matching_again(monkeypatch):
    images = found_boxes(6)
    parts = [meter_of(images[:2]), meter_of([]), meter_of(images[2:])]
    results = meter_of([]).repeated(parts)
    expected = {times: meter_of(parts[0].images * times[0] + parts[2].images * times[2]).compute()
                for times in ((1, 1, 1), (2, 0, 1), (0, 3, 2))}  # fmt: skip
    monkeypatch.setattr("vitrail.tasks.detect.coco_matches.evaluated", None)
    for times, whole in expected.items():
        same(results(times), {name: value for name, value in whole.items() if name != "confusion"})
    with pytest.raises(DataError, match="images"):
        results([0, 5, 0])
