"""The end of a search: the choice is copied, and test images are seen once, by the chosen trial and the default."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_data import photos, split
from support.task_case import PLAN

from vitrail.runs.record import Record, Result
from vitrail.training.plan import make_plan
from vitrail.training.tuning import keeping
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.journal import Journal, Trial
from vitrail.training.tuning.keeping import keep_chosen
from vitrail.training.tuning.trial_run import run_trial, with_length, without_test

CPU = torch.device("cpu")


def test_the_chosen_trial_becomes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    plan = make_plan(split(photos(32), test=6), model="vit32_small", changes=PLAN)
    journal = Journal(tmp_path / "run", {"data": "photos", "options": {}}, Budget("steps", 10))
    for number in (1, 2, 3):
        trial = Trial(key=str(number), number=number, about=f"trial {number}", state="started", epochs=1)
        part = with_length(without_test(plan), 1, 1.0, timed=False)
        done = run_trial(trial, part, journal.folder, device=CPU, val=None, expired=lambda: False)
        better: Any = {"accuracy": number / 10, "nll": 1.0}
        journal.keep(Trial(**vars(done) | {"metrics": better, "parts": ((better, better),) * 5}))
    tested: list[str] = []
    monkeypatch.setattr(
        keeping, "evaluate_on", lambda model, data: (tested.append(model.source), evaluate(model, data))[1]
    )
    task = plan.build_task(blank=True)
    found = keep_chosen(journal, plan, task, CPU)
    assert found.chosen.number == 3
    assert [Path(source).name for source in tested] == ["01", "03"]
    assert set(found.tested) == {1, 3}
    assert found.tested[3] == found.metrics["test_accuracy"]
    assert Result.read(tmp_path / "run").metrics["test_accuracy"] == found.tested[3]
    assert "trial 3" in Record.read(tmp_path / "run").notes[-1]
    assert Journal.read(tmp_path / "run").chosen == 3


evaluate = keeping.evaluate_on
