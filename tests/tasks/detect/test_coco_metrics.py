"""COCO's numbers: perfect and partial answers by hand, torchmetrics' on random boxes, sizes, images left out."""

import pickle

import pytest
import torch

from vitrail.errors import DataError
from vitrail.tasks.detect.coco_metrics import BoxMeter

pytest.importorskip("pycocotools")
CLASSES = ("cat", "dog", "eel")


def batch(images=6, most=5, found=8, seed=0):
    """Random true boxes, and found ones near them."""
    torch.manual_seed(seed)
    first = torch.rand(images, most, 2) * 60
    truth = torch.zeros(images, most, 7)
    truth[..., :4] = torch.cat([first, first + 5 + torch.rand(images, most, 2) * 60], dim=2)
    truth[..., 4] = torch.randint(2, (images, most))
    truth[..., 6] = (truth[..., 2] - truth[..., 0]) * (truth[..., 3] - truth[..., 1])
    truth[0, 3:] = 0
    truth[0, 3:, 4] = -1
    rows = torch.randint(most, (images, found))
    boxes = truth[..., :4].gather(1, rows[..., None].expand(-1, -1, 4)) + torch.randn(images, found, 4) * 2
    labels = truth[..., 4].gather(1, rows).clamp(min=0)
    return {"boxes": boxes, "scores": torch.rand(images, found), "labels": labels}, {"boxes": truth}


def results(outputs, targets, threshold=0.5):
    meter = BoxMeter("boxes", CLASSES, threshold)
    meter.update(outputs, targets)
    return meter.compute()


def test_the_truth_is_perfect():
    _, targets = batch()
    truth = targets["boxes"]
    scores = torch.where(truth[..., 4] >= 0, 0.9, 0.0)
    found = results({"boxes": truth[..., :4], "scores": scores, "labels": truth[..., 4].clamp(min=0)}, targets)
    assert found["ap"] == pytest.approx(1)
    assert found["ap50"] == pytest.approx(1)
    assert found["f1"] == 1
    assert found["images"] == 6
    assert found["boxes"] == 28
    assert found["ap_of"][2].isnan(), "no box of this class"
    assert found["precision"].shape == (3, 101)
    assert found["confusion"].diagonal()[:2].sum() == 28


def test_is_pycocotools_through_torchmetrics():
    detection = pytest.importorskip("torchmetrics.detection")
    outputs, targets = batch(images=12)
    try:
        peer = detection.MeanAveragePrecision(backend="pycocotools", iou_type="bbox")
    except ModuleNotFoundError as error:  # it needs compiled parts of torchvision
        pytest.skip(str(error))
    truth = targets["boxes"]
    real = [row[row[:, 4] >= 0] for row in truth]
    peer.update(
        [
            {"boxes": box, "scores": score, "labels": label.long()}
            for box, score, label in zip(outputs["boxes"], outputs["scores"], outputs["labels"], strict=True)
        ],
        [{"boxes": row[:, :4], "labels": row[:, 4].long()} for row in real],
    )
    expected, found = peer.compute(), results(outputs, targets)
    for ours, theirs in (("ap", "map"), ("ap50", "map_50"), ("ap75", "map_75"), ("ap_small", "map_small")):
        assert found[ours] == pytest.approx(float(expected[theirs]), abs=1e-5)


def test_sizes_are_those_of_the_original():
    outputs, targets = batch()
    small = results(outputs, targets)
    targets["boxes"][..., 6] *= 10_000
    assert "ap_small" in small
    large = results(outputs, targets)
    assert "ap_small" not in large
    assert large["ap_large"] == pytest.approx(large["ap"])


def test_images_that_were_not_annotated_do_not_count():
    outputs, targets = batch()
    targets["boxes"][2:, :, 4] = -2
    assert results(outputs, targets)["images"] == 2
    targets["boxes"][..., 4] = -2
    with pytest.raises(DataError, match="annotated"):
        results(outputs, targets)


def test_ignored_boxes_are_neither_hit_nor_miss():
    outputs, targets = batch()
    before = results(outputs, targets)
    targets["boxes"][:, 0, 5] = 1
    after = results(outputs, targets)
    assert after["boxes"] == before["boxes"] - 6
    assert after["recall"] != before["recall"]


def test_parts_are_merged_and_pickled():
    outputs, targets = batch()
    meters = [BoxMeter("boxes", CLASSES, 0.5) for _ in range(2)]
    for meter, part in zip(meters, (slice(0, 2), slice(2, None)), strict=True):
        meter.update({name: values[part] for name, values in outputs.items()}, {"boxes": targets["boxes"][part]})
    first, second = (pickle.loads(pickle.dumps(meter)) for meter in meters)
    first.merge(second)
    assert first.compute()["ap"] == results(outputs, targets)["ap"]


def test_nothing_found():
    outputs, targets = batch()
    found = results({name: values[:, :0] for name, values in outputs.items()}, targets)
    assert (found["ap"], found["f1"], found["threshold"]) == (0, 0, 0.5)
