"""Several labels an image: the loss by hand, thresholds, and which answers are the same."""

import json
import math

import pytest
import torch
from support.registered import pictures
from support.small_tasks import classifier as make


def test_several_labels_by_hand():
    labels = torch.tensor([[1.0, 0, 0, 0, 0]])
    logits = torch.tensor([[math.log(3), 0.0, 0, 0, 0]])  # probabilities 3/4 and halves
    for smoothing, given in [(0.0, 1.0), (0.2, 0.9)]:
        found = make(multi_label=True, label_smoothing=smoothing).losses(logits, labels)
        first = -(given * math.log(3 / 4) + (1 - given) * math.log(1 / 4))
        assert found["loss"].item() == pytest.approx((first + 4 * math.log(2)) / 5)


def test_predicts_labels_above_their_thresholds():
    task = make(multi_label=True)
    images = pictures(task.backbone)
    assert task.thresholds.tolist() == [0.5] * 5
    outputs = task.outputs(images)
    thresholds = outputs["logits"][0].sigmoid().double().detach().clone()
    thresholds[2] += 0.01
    task.adopt({"thresholds": thresholds})
    (found, _) = task.decode(outputs)
    assert {one.number for one in found.candidates if one.chosen} == {0, 1, 3, 4}
    (first, _) = task.decode(outputs, top=1)
    assert {one.number for one in first.candidates} >= {0, 1, 3, 4}  # all that are chosen are named


def test_thresholds_are_kept_in_the_state():
    task = make(multi_label=True)
    task.adopt({"thresholds": torch.linspace(0.1, 0.9, 5)})
    other = make(multi_label=True)
    other.load_state(json.loads(json.dumps(task.state())))
    torch.testing.assert_close(other.thresholds, torch.linspace(0.1, 0.9, 5))
    assert other.metrics().thresholds.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


def test_answers_are_the_same_where_the_same_labels_are_given():
    task = make(multi_label=True, thresholds=[0.2, 0.5, 0.5, 0.5, 0.9])
    logits = torch.tensor([[-1.0, 1, -1, -1, 2], [-2.0, 1, -1, -1, 3]])
    given = [{one.number for one in answer.candidates if one.chosen} for answer in task.decode({"logits": logits})]
    assert given == [{0, 1}, {1, 4}]
    first = {"logits": logits.numpy()}
    assert task.same(first, {"logits": logits.numpy() + 0.05}).tolist() == [True, True]
    assert task.same(first, {"logits": logits.flip(0).numpy()}).tolist() == [False, False]
