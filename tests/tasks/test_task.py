"""The contract of every task: the same suite for each."""

import copy

import pytest
import torch
from registered import pictures, tiny

from vitrail.data.dataset import Batch
from vitrail.tasks.classify import Classify
from vitrail.tasks.distill import Distill
from vitrail.tasks.mae import MAE, MAEConfig
from vitrail.tasks.task import Task

CLASSES = ("a", "b", "c", "d", "e")
TASKS = {
    "classify": lambda: Classify(tiny(), classes=CLASSES),
    "several labels": lambda: Classify(tiny(), classes=CLASSES, multi_label=True),
    "hard": lambda: Distill(tiny(), teacher=tiny(), classes=CLASSES, kind="hard"),
    "soft": lambda: Distill(tiny(), teacher=tiny(), classes=CLASSES, kind="soft"),
    "token": lambda: Distill(tiny("deit_tiny_distilled_patch16"), teacher=tiny(), classes=CLASSES, kind="token"),
    "mae": lambda: MAE(tiny(num_classes=0), config=MAEConfig(mask=0.5, dim=32, depth=1, num_heads=2)),
}


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]()


def batch(task, count=10):
    labels = torch.arange(count) % 5
    several = "several" if getattr(task, "multi_label", False) else ""
    return Batch(pictures(task.backbone, count), torch.eye(5)[labels] if several else labels, torch.arange(count))


def test_losses_are_finite_scalars_and_every_parameter_learns(task):
    assert isinstance(task, Task)
    losses = task.train()(batch(task))
    assert all(value.ndim == 0 and torch.isfinite(value) for value in losses.values())
    assert [name for name, value in losses.items() if value.requires_grad] == ["loss"]
    losses["loss"].backward()
    assert all(parameter.grad is not None for parameter in task.parameters())


def test_soft_labels_are_taken(task):
    images, _, ids = batch(task)
    soft = torch.rand(10, 5).softmax(dim=1)
    assert torch.isfinite(task.loss(Batch(images, soft, ids))["loss"])


def test_outputs_meter_and_best_metric_fit_together(task):
    given = batch(task)
    outputs = task.outputs(given.images)
    assert outputs.shape == (10, 5 if task.classes else 3)
    meter = task.metrics()
    meter.update(outputs, given.labels)
    results = meter.compute()
    assert 0 <= results[task.best_metric] <= 1 or not task.classes
    task.adopt(results)
    fresh = task.metrics()
    fresh.update(outputs, given.labels)
    assert fresh.compute()["images"] == 10


def test_predictions_are_named(task):
    found = task.predict(pictures(task.backbone))
    assert all(len(value) == 2 for value in found.values())
    if not task.classes:
        return
    assert found["probabilities"].shape == found["chosen"].shape == (2, 5)
    assert found["chosen"].dtype == torch.bool
    assert ((found["probabilities"] >= 0) & (found["probabilities"] <= 1)).all()


def test_state_goes_through_a_state_dict(task):
    other = copy.deepcopy(task)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(task.state_dict())
    images = pictures(task.backbone)
    torch.testing.assert_close(other.eval().outputs(images), task.eval().outputs(images))
