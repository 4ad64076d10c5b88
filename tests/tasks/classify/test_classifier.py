"""What classifiers of one class and of several labels share."""

import pytest
import torch
from support.registered import pictures
from support.small_tasks import CLASSES
from support.small_tasks import classifier as make

from vitrail.data.dataset import Batch
from vitrail.report import Report


def batch(task, labels):
    return Batch(pictures(task.backbone, len(labels)), {task.field: labels}, torch.arange(len(labels)))


def test_loss_goes_through_the_backbone_and_forward_is_the_loss():
    task = make()
    given = batch(task, torch.tensor([0, 3]))
    expected = task.losses(task.backbone(given.images), given.targets["label"])
    torch.testing.assert_close(task.loss(given), expected)
    torch.testing.assert_close(task(given), expected)
    torch.testing.assert_close(task.outputs(given.images), {"logits": task.backbone(given.images)})


def test_the_model_learns_the_names():
    assert make().backbone.labels == CLASSES


def test_an_empty_batch_works():
    task = make()
    outputs = task.outputs(pictures(task.backbone, 0))
    assert outputs["logits"].shape == (0, 5)
    task.metrics().update(outputs, {"label": torch.zeros(0, dtype=torch.long)})
    assert task.decode(outputs) == []


@pytest.mark.parametrize("multi_label", [False, True])
def test_results_become_a_lead_intervals_and_sections(multi_label):
    task, labels = make(multi_label=multi_label), torch.arange(20) % 5
    meter = task.metrics()
    meter.update({"logits": torch.randn(20, 5)}, {task.field: torch.eye(5)[labels] if multi_label else labels})
    results = meter.compute()
    assert "of 20 images" in task.lead(results)
    assert task.intervals(results)
    titles = [section.title for section in task.evidence(results)]
    assert "Per class" in titles
    assert Report("test", task.evidence(results)).to_html()


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_likeliest_class_is_explained(multi_label):
    outputs = {"logits": torch.tensor([[0.0, 3, 1, 0, 0], [5.0, 0, 0, 0, 0]])}
    task = make(multi_label=multi_label)
    assert task.explain_target(outputs, None).tolist() == [1, 0]
    assert task.explain_target(outputs, "dog").tolist() == [3, 3]
