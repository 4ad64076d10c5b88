"""A trial as a run: what the user gave goes before what a candidate says, and no trial has test images."""

from pathlib import Path

import pytest
import torch
from support.small_data import photos, split
from support.task_case import PLAN

from vitrail.training.plan import make_plan
from vitrail.training.tuning.candidates import Candidate
from vitrail.training.tuning.journal import Trial
from vitrail.training.tuning.trial_run import plan_of, run_trial, with_length, without_test


def test_the_plan_of_a_candidate() -> None:
    default = make_plan(split(photos(32)), model="vit32_small", changes={**PLAN, "optimiser": {"lr": 1e-3}})
    other = Candidate(
        about="", traits={}, model="vit32_base", rate=3.0, changes={"optimiser": {"lr": 1e-9, "clip": 2.0}, "ema": 0.5}
    )
    plan = plan_of(default, other, {"model": "vit32_small", **PLAN, "optimiser": {"lr": 1e-3}}, torch.device("cpu"))
    assert plan.config.model == "vit32_small"
    assert plan.config.optimiser.lr == pytest.approx(3e-3)
    assert (plan.config.optimiser.clip, plan.config.ema) == (2.0, 0.5)
    short = with_length(plan, 7, 10.0, timed=True)
    assert (short.config.epochs, short.config.save_every, short.config.keep) == (7, 6, 1)
    assert with_length(plan, None, 1.0, timed=True) is plan


def test_a_trial_that_runs_out_of_time_keeps_its_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    plan = make_plan(split(photos(32), test=4), model="vit32_small", changes=PLAN)
    plan = with_length(without_test(plan), 5, 1.0, timed=False)
    trial = Trial(key="a", number=1, about="", state="started", epochs=5)
    asked = iter([False] * 9)
    done = run_trial(trial, plan, tmp_path, device=torch.device("cpu"), val=None, expired=lambda: next(asked, True))
    assert done.scored
    assert "ended by the budget" in done.reason
    assert 0 < done.spent < 10
    assert not any(name.startswith("test_") for name in done.metrics)
    assert (tmp_path / done.folder / "model.safetensors").is_file()
