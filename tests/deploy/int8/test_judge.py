"""When int8 is good enough: by answers beside float32, or by the metric on labelled images."""

import numpy as np
import pytest
import torch
from support.shipped import photos
from support.small_detector import detector

from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.int8.judge import ByMetric, Closeness, closeness, least


@pytest.fixture(scope="module")
def pixels(model):
    return at_size(photos(40), (24, 16), model.preprocess)


def test_validation_ends_with_the_first_answer_too_many(model, pixels):
    eager = TorchEngine(model)
    logits = np.zeros((len(pixels), 5), np.float32)
    calls = []

    def run(images):
        calls.append(len(images))
        return {"logits": np.eye(5, dtype=np.float32)[np.zeros(len(images), int)]}

    eager.run = run
    logits[:, 0] = 1
    logits[[0, 20], :2] = 0.5, 1
    expected = {"logits": logits}
    found = closeness(eager, pixels, expected, Closeness(0.4, 0.95))
    assert found == pytest.approx((0.4472, 0.95), abs=1e-4), "two of forty"
    assert closeness(eager, pixels, expected, Closeness(0.4, 0.96)) is None
    assert closeness(eager, pixels, expected, Closeness(0.5, 0.95)) is None
    assert calls == [16, 16, 8, 16, 16, 16], "the rest is not run"


def test_the_worst_of_all_sizes_counts():
    assert least([Closeness(0.9, 1.0), Closeness(1.0, 0.8)]) == (0.9, 0.8)
    later = iter([Closeness(0.9, 1.0), None, Closeness(1.0, 1.0)])
    assert least(later) is None
    assert len(list(later)) == 1, "the sizes after it are not tried"


class Found(TorchEngine):
    """Gives the boxes that it is told to."""

    def __init__(self, boxes):
        super().__init__(detector())
        self.boxes = boxes

    def run(self, images):
        many = len(images)
        scores = np.full((many, len(self.boxes)), 0.9, np.float32)
        boxes = np.broadcast_to(np.array(self.boxes, np.float32), (many, len(self.boxes), 4))
        return {"boxes": boxes, "scores": scores, "labels": np.zeros_like(scores)}


def test_the_metric_may_lose_half_a_point():
    pytest.importorskip("pycocotools")
    images = np.zeros((4, 64, 64, 3), np.uint8)
    row = torch.tensor([[8.0, 8, 40, 40, 0, 0, 1024]])
    truth = {BoxesTarget.field: row.expand(4, 1, 7).clone()}
    judge = ByMetric(Found([[8, 8, 40, 40]]), [images], truth, allowed=0.005)
    assert judge.lost.before == pytest.approx(1.0)
    assert judge.closeness(Found([[8, 8, 40, 40.2]])) is not None
    assert judge.closeness(Found([[8, 8, 40, 30]])) is None
    assert judge.lost.title == "AP"
    assert judge.lost.after < 0.9
