"""Regression: losses by hand, metrics as scikit-learn's, intervals that cover what they say, and that it learns."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from support.registered import pictures, tiny
from support.small_tasks import regressor
from support.task_data import numbers_table

from vitrail.data.dataset import Batch
from vitrail.data.targets import NumbersTarget
from vitrail.errors import ConfigError, DataError
from vitrail.runs.trained import open_model
from vitrail.tasks.regress import RegressConfig
from vitrail.training.run import Run, train


def fitted(**options):
    task = regressor(**options)
    task.fit({"numbers": torch.tensor([[0.0, 100.0], [2.0, 300.0], [4.0, 500.0]])})
    return task


@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_losses_by_hand_are_in_deviations(loss):
    task = fitted(loss=loss, delta=0.5)
    images = pictures(task.backbone, 3)
    numbers = torch.tensor([[1.0, 250.0], [2.0, 300.0], [9.0, -50.0]])
    found = task.loss(Batch(images, {"numbers": numbers}, torch.arange(3)))
    deviation = torch.tensor([np.std([0, 2, 4]), np.std([100, 300, 500])], dtype=torch.float32)
    gap = (task.backbone(images) - (numbers - torch.tensor([2.0, 300.0])) / deviation).abs().detach()
    expected = gap.square() if loss == "mse" else torch.where(gap < 0.5, gap.square() / 2, 0.5 * (gap - 0.25))
    assert found["loss"].item() == pytest.approx(expected.mean().item(), rel=1e-5)
    assert found["mae_std"].item() == pytest.approx(gap.mean().item(), rel=1e-5)


def test_outputs_are_in_their_own_units():
    task = fitted()
    images = pictures(task.backbone)
    expected = task.backbone(images) * task.std + task.mean
    torch.testing.assert_close(task.outputs(images)["numbers"], expected)


def test_metrics_are_those_of_scikit_learn():
    task = regressor()
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(200, 2, generator=draw) * torch.tensor([1.0, 50.0])
    said = truth + torch.randn(200, 2, generator=draw)
    meter = task.metrics()
    for part in (slice(0, 70), slice(70, 200)):
        meter.update({"numbers": said[part]}, {"numbers": truth[part]})
    found = meter.compute()
    assert found["r2"] == pytest.approx(r2_score(truth, said))
    assert found["mae"] == pytest.approx(mean_absolute_error(truth, said), rel=1e-6)
    assert found["rmse"] == pytest.approx(root_mean_squared_error(truth, said), rel=1e-6)
    assert found["r2_of"].tolist() == pytest.approx(r2_score(truth, said, multioutput="raw_values").tolist())
    assert "coverage" not in found
    with pytest.raises(DataError, match="empty"):
        task.metrics().compute()


def test_an_interval_is_the_quantile_that_conformal_prediction_asks_for():
    task = regressor(coverage=0.8)
    errors = torch.tensor([[0.1, 1], [0.5, 2], [0.2, 3], [0.9, 4], [0.3, 5], [0.4, 6], [0.7, 7], [0.8, 8], [0.6, 9]])
    truth = torch.zeros(9, 2)
    task.calibrate({"numbers": errors}, {"numbers": truth})
    assert task.margin == pytest.approx([0.8, 8])  # the 8th of 9: ceil(10 * 0.8)
    answer = task.decode({"numbers": torch.tensor([[1.0, 20.0]])})[0]
    assert [(one.low, one.high) for one in answer.numbers] == [pytest.approx((0.2, 1.8)), pytest.approx((12, 28))]
    assert "80 %" in task.calibration()
    meter = task.metrics()
    meter.update({"numbers": errors}, {"numbers": truth})
    assert meter.compute()["coverage"] == pytest.approx(8 / 9)
    task.calibrate({"numbers": errors[:3]}, {"numbers": truth[:3]})
    assert task.margin is None
    assert "too few" in task.calibration()


def test_answers_as_text_row_and_bars():
    task = fitted()
    task.margin = [1.0, 50.0]
    (answer,) = task.decode({"numbers": torch.tensor([[3.0, 700.0]])})
    assert answer.text() == "x 3 (2 to 4), y 700 (650 to 750)"
    assert tuple(answer.row()) == task.columns == ("x", "x_low", "x_high", "y", "y_low", "y_high")
    first, second = answer.bars()
    assert (first.share, first.low, first.high) == (0.75, 0.5, 1.0)
    assert (second.share, second.low, second.high) == (1.0, 1.0, 1.0)  # beyond what was seen in training
    task.clear_calibration()
    (answer,) = task.decode({"numbers": torch.tensor([[3.0, 700.0]])})
    assert answer.text() == "x 3, y 700"
    assert answer.to_json()["numbers"][0] == {"name": "x", "value": 3.0, "low": None, "high": None}


def test_errors_and_agreement_are_in_deviations():
    task = fitted()
    near, far = torch.tensor([[2.0, 300.0]]), torch.tensor([[2.0, 300.0 + 3 * task.std[1].item()]])
    assert task.errors({"numbers": near}, {"numbers": near}).tolist() == [0.0]
    assert task.errors({"numbers": far}, {"numbers": near}).tolist() == pytest.approx([3.0])
    assert task.same({"numbers": near.numpy()}, {"numbers": near.numpy() + 0.01}).tolist() == [True]
    assert task.same({"numbers": near.numpy()}, {"numbers": far.numpy()}).tolist() == [False]


def test_a_head_of_another_width_and_a_number_that_never_changes():
    with pytest.raises(ConfigError, match=r"reset_head\(2\)"):
        regressor(model=tiny(num_classes=5))
    task = regressor()
    task.fit({"numbers": torch.ones(5, 2)})
    assert torch.isfinite(
        task.loss(Batch(pictures(task.backbone), {"numbers": torch.ones(2, 2)}, torch.arange(2)))["loss"]
    )
    with pytest.raises(ConfigError, match="coverage"):
        RegressConfig(coverage=1.5)


SMALL = {
    "model": "vit32_small", "image_size": 32, "batch_size": 16, "epochs": 20, "device": "cpu", "silent": True,
    "options": {"dim": 48, "depth": 2, "num_heads": 3, "dropout": 0.0, "patch": {"size": 8}},
    "optimiser": {"lr": 2e-3}, "schedule": {"warmup_epochs": 2}, "val": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A model of the position and brightness of blobs in 400 images, and a table of 300 others."""
    folder = tmp_path_factory.mktemp("blobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(folder / "cache"))
        run = train(numbers_table(folder, count=400), folder=folder / "run", **SMALL)
        return run, numbers_table(folder, count=300, seed=1, name="fresh.csv")


def test_it_learns_position_and_brightness(learned: tuple[Run, Path]) -> None:
    run, fresh = learned
    assert run.metrics["r2"] > 0.8
    found = open_model(run.folder).evaluate(fresh)
    assert found.results["r2_of"].min() > 0.8


def test_its_intervals_cover_fresh_images_as_often_as_they_say(learned: tuple[Run, Path]) -> None:
    run, fresh = learned
    found = open_model(run.folder).evaluate(fresh)
    assert [0.84 <= share <= 0.96 for share in found.results["coverage_of"].tolist()] == [True, True]


def test_flips_and_crops_are_off_until_they_are_declared_safe(learned: tuple[Run, Path], tmp_path: Path) -> None:
    run, fresh = learned
    assert (run.config.augment.flip, run.config.augment.crop) == (False, "none")
    assert any("flips are off" in note for note in run.plan.notes)
    declared = {"kind": "regress", "safe": ["flip", "crop"]}
    safe = train(fresh, folder=tmp_path / "run", task=declared, **SMALL | {"epochs": 1})
    assert (safe.config.augment.flip, safe.config.augment.crop) == (True, "resized")
    assert safe.record is not None
    assert safe.record.schema == {"numbers": NumbersTarget(names=("x", "level"), safe=("flip", "crop"))}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["task"]["safe"] == ["flip", "crop"]
