"""What runs cost: counted, read from their records, and measured."""

from pathlib import Path

import pytest
import torch

from vitrail.comparison.costs import costs, step_seconds
from vitrail.comparison.opened import open_runs


def test_costs_of_a_run(runs: list[Path]) -> None:
    opened = open_runs(runs, device=torch.device("cpu"))
    found = costs(opened, rounds=1)[0]
    assert found.parameters == sum(value.numel() for value in opened[0].model.backbone.parameters())
    assert found.macs is not None
    assert found.macs > 0
    assert found.size == (runs[0] / "model.safetensors").stat().st_size
    assert found.step == pytest.approx(0.1)
    assert found.training == 3
    assert found.answer > 0


def test_a_head_that_was_fitted_at_once_has_no_steps() -> None:
    assert step_seconds({"batch_size": 8}, [{"step": 0, "images_per_second": 5.0}]) is None
    assert step_seconds({"batch_size": 8}, []) is None
