"""Classification: losses by hand, soft labels, thresholds, and that it learns."""

import math

import pytest
import torch
from support.registered import pictures
from support.small_tasks import classifier

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError

make = classifier


def batch(task, labels):
    return Batch(pictures(task.backbone, len(labels)), {task.field: labels}, torch.arange(len(labels)))


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
    outputs = task.outputs(pictures(task.backbone))
    for answer, row in zip(task.decode(outputs), outputs["logits"], strict=True):
        assert [one.number for one in answer.candidates] == row.argsort(descending=True).tolist()
        assert [one.chosen for one in answer.candidates] == [True, False, False, False, False]
        assert sum(one.probability for one in answer.candidates) == pytest.approx(1)
    assert [len(answer.candidates) for answer in task.decode(outputs, top=2)] == [2, 2]


def test_confidence_is_calibrated_where_there_are_enough_images():
    task, draw = make(), torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, generator=draw)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=draw)[:, 0]
    sure = {"logits": 4 * logits}
    task.calibrate({"logits": 4 * logits[:10]}, {"label": labels[:10]})
    assert task.temperature.temperature == 1
    before = task.decode(sure)[0].candidates[0]
    task.calibrate(sure, {"label": labels})
    assert task.temperature.temperature == pytest.approx(4, rel=0.2)
    after = task.decode(sure)[0].candidates[0]
    assert (after.label, after.probability < before.probability) == (before.label, True)
    torch.testing.assert_close(task.graph(sure)["probabilities"][0].max().item(), after.probability)
    torch.testing.assert_close(task.scores(sure["logits"]), task.graph(sure)["probabilities"])
    assert "400 images" in task.calibration()


@pytest.mark.parametrize("multi_label", [False, True])
def test_meter_gives_the_metric_that_the_best_is_chosen_by(multi_label):
    task = make(multi_label=multi_label)
    labels = torch.arange(10) % 5
    meter = task.metrics()
    meter.update({"logits": torch.randn(10, 5)}, {task.field: torch.eye(5)[labels] if multi_label else labels})
    results = meter.compute()
    assert 0 <= results[task.best_metric] <= 1
    task.adopt(results)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ("a", "b")}, r"reset_head\(2\)"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize("multi_label", [False, True])
def test_numbers_that_are_not_finite_and_too_few_candidates_are_refused(multi_label):
    task = make(multi_label=multi_label)
    with pytest.raises(ValueError, match="finite"):
        task.decode({"logits": torch.full((1, 5), torch.nan)})
    with pytest.raises(ConfigError, match="top"):
        task.decode({"logits": torch.zeros(1, 5)}, top=0)


def test_errors_are_the_confidence_of_what_is_wrong():
    logits = torch.tensor([[4.0, 0, 0, 0, 0], [0.0, 1, 0, 0, 0], [0.0, 0, 5, 0, 0]])
    wrong = make().errors({"logits": logits}, {"label": torch.tensor([0, 0, 3])})
    assert wrong[0] == 0
    assert 0 < wrong[1] < wrong[2] < 1
    truth = torch.tensor([[1.0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    wrong = make(multi_label=True).errors({"logits": logits - 0.5}, {"labels": truth})
    assert wrong[0] == wrong[1] == 0
    assert wrong[2] > 0.9
