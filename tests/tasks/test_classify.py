"""Classification: losses by hand, soft labels, thresholds, and that it learns."""

import math

import pytest
import torch
from registered import pictures, tiny

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError
from vitrail.tasks.classify import Classify

CLASSES = ("a", "b", "c", "d", "e")


def make(**options):
    return Classify(tiny(), classes=CLASSES, **options)


def batch(task, labels):
    return Batch(pictures(task.backbone, len(labels)), labels, torch.arange(len(labels)))


def test_cross_entropy_by_hand():
    found = make().losses(torch.tensor([[0.0, math.log(3), 0, 0, 0]]), torch.tensor([1]))
    assert found["loss"].item() == pytest.approx(-math.log(3 / 7))
    assert found["accuracy"] == 1


def test_label_smoothing_by_hand():
    found = make(label_smoothing=0.1).losses(torch.tensor([[0.0, math.log(3), 0, 0, 0]]), torch.tensor([1]))
    expected = -(0.92 * math.log(3 / 7) + 4 * 0.02 * math.log(1 / 7))
    assert found["loss"].item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_labels_that_are_hard_change_nothing(smoothing):
    task = make(label_smoothing=smoothing)
    logits, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    hard, soft = task.losses(logits, labels), task.losses(logits, torch.eye(5)[labels])
    torch.testing.assert_close(hard, soft)


def test_soft_labels_by_hand():
    soft = torch.tensor([[0.7, 0.3, 0, 0, 0]])
    found = make().losses(torch.tensor([[0.0, math.log(3), 0, 0, 0]]), soft)
    assert found["loss"].item() == pytest.approx(-(0.7 * math.log(1 / 7) + 0.3 * math.log(3 / 7)))
    assert found["accuracy"] == 0


def test_several_labels_by_hand():
    labels = torch.tensor([[1.0, 0, 0, 0, 0]])
    logits = torch.tensor([[math.log(3), 0.0, 0, 0, 0]])  # probabilities 3/4 and halves
    for smoothing, given in [(0.0, 1.0), (0.2, 0.9)]:
        found = make(multi_label=True, label_smoothing=smoothing).losses(logits, labels)
        first = -(given * math.log(3 / 4) + (1 - given) * math.log(1 / 4))
        assert found["loss"].item() == pytest.approx((first + 4 * math.log(2)) / 5)


def test_loss_goes_through_the_backbone_and_forward_is_the_loss():
    task = make()
    given = batch(task, torch.tensor([0, 3]))
    expected = task.losses(task.backbone(given.images), given.labels)
    torch.testing.assert_close(task.loss(given), expected)
    torch.testing.assert_close(task(given), expected)
    torch.testing.assert_close(task.outputs(given.images), task.backbone(given.images))


def test_loss_of_half_precision_logits_is_in_full():
    logits = torch.randn(4, 5)
    assert make().losses(logits.bfloat16(), torch.arange(4))["loss"].dtype == torch.float32


@pytest.mark.parametrize("multi_label", [False, True])
def test_learns_in_thirty_steps(multi_label):
    task = make(multi_label=multi_label).train()
    labels = torch.arange(5)
    given = batch(task, torch.eye(5)[labels] if multi_label else labels)
    optimiser = torch.optim.AdamW(task.parameters(), lr=2e-3)
    first = task.loss(given)["loss"].item()
    for _ in range(30):
        optimiser.zero_grad()
        task.loss(given)["loss"].backward()
        optimiser.step()
    assert task.loss(given)["loss"].item() < 0.3 * first


def test_predicts_one_class():
    task = make()
    found = task.predict(pictures(task.backbone))
    torch.testing.assert_close(found["probabilities"].sum(dim=1), torch.ones(2))
    assert torch.equal(found["chosen"].int().argmax(dim=1), found["probabilities"].argmax(dim=1))
    assert found["chosen"].sum(dim=1).tolist() == [1, 1]


def test_predicts_labels_above_their_thresholds():
    task = make(multi_label=True)
    images = pictures(task.backbone)
    assert task.thresholds.tolist() == [0.5] * 5
    probabilities = task.predict(images)["probabilities"]
    torch.testing.assert_close(probabilities, task.outputs(images).sigmoid())
    thresholds = probabilities[0].double().detach().clone()
    thresholds[2] += 0.01
    task.adopt({"thresholds": thresholds})
    assert task.predict(images)["chosen"][0].tolist() == [True, True, False, True, True]


def test_thresholds_are_kept_with_the_weights():
    task = make(multi_label=True)
    task.adopt({"thresholds": torch.linspace(0.1, 0.9, 5)})
    other = make(multi_label=True)
    other.load_state_dict(task.state_dict())
    torch.testing.assert_close(other.thresholds, torch.linspace(0.1, 0.9, 5))
    again = make(multi_label=True, thresholds=other.thresholds.tolist())
    torch.testing.assert_close(again.thresholds, other.thresholds)
    assert again.metrics().thresholds.tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


@pytest.mark.parametrize("multi_label", [False, True])
def test_meter_gives_the_metric_that_the_best_is_chosen_by(multi_label):
    task = make(multi_label=multi_label)
    labels = torch.arange(10) % 5
    meter = task.metrics()
    meter.update(torch.randn(10, 5), torch.eye(5)[labels] if multi_label else labels)
    results = meter.compute()
    assert 0 <= results[task.best_metric] <= 1
    task.adopt(results)


def test_an_empty_batch_is_no_problem():
    task = make()
    logits = task.outputs(pictures(task.backbone, 0))
    assert logits.shape == (0, 5)
    task.metrics().update(logits, torch.zeros(0, dtype=torch.long))


def test_the_model_learns_the_names():
    assert make().backbone.labels == CLASSES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ("a", "b")}, r"head for 5 classes, the data have 2; .*reset_head\(2\)"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ({"thresholds": [0.5] * 5}, "go with several labels"),
        ({"thresholds": [0.5] * 4, "multi_label": True}, "thresholds are 4"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Classify(tiny(), **({"classes": CLASSES} | options))
