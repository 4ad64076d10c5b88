"""IoU over all pixels of a data set, not the mean over images."""

import pickle

import pytest
import torch

from vitrail.errors import DataError
from vitrail.tasks.segment.mask_metrics import MaskMeter, pixel_confusion

TRUE = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [1, 255]]], dtype=torch.uint8)
FOUND = torch.tensor([[[0, 0], [1, 1]], [[1, 1], [0, 0]]]).float()


def results(truth=TRUE, found=FOUND, classes=("sky", "road", "car")):
    meter = MaskMeter("mask", classes)
    meter.update({"classes": found}, {"mask": truth})
    return meter.compute()


def test_counts_by_hand():
    found = results()
    assert found["confusion"].tolist() == [[2, 1, 0], [1, 3, 0], [0, 0, 0]]
    assert found["miou"] == pytest.approx((2 / 4 + 3 / 5) / 2), "a class without pixels has no part in it"
    assert found["pixel_accuracy"] == pytest.approx(5 / 7)
    assert found["class_accuracy"] == pytest.approx((2 / 3 + 3 / 4) / 2)
    assert found["iou_of"][2].isnan()
    assert found["images"] == 2


def test_parts_are_merged_and_pickled():
    meters = [MaskMeter("mask", ("sky", "road", "car")) for _ in range(2)]
    for index, meter in enumerate(meters):
        meter.update({"classes": FOUND[index : index + 1]}, {"mask": TRUE[index : index + 1]})
    first, second = (pickle.loads(pickle.dumps(meter)) for meter in meters)
    first.merge(second)
    assert first.compute()["miou"] == results()["miou"]


def test_images_without_masks():
    with pytest.raises(DataError, match="mask"):
        results(torch.full_like(TRUE, 255))
    assert not pixel_confusion(torch.full_like(TRUE, 255), FOUND, 3).any()
