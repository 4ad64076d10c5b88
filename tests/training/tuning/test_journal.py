"""tuning.json: everything that decides comes back; damage is said."""

import math
from pathlib import Path

import pytest

from vitrail.errors import TrainingError
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.halving import Rung
from vitrail.training.tuning.journal import FILE, Journal, Trial, is_tuned, over


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"data": "photos", "options": {"lr": 1}}, Budget("steps", 100, spent=40))
    journal.brackets.append([Rung(3, 10.0), Rung(1, 30.0)])
    started = Trial(key="a", number=1, about="the default", traits={"method": "x"}, state="started", epochs=3)
    journal.keep(started)
    done = over(started, metrics={"accuracy": 0.5, "f1": math.nan}, parts=(({"f1": math.nan}, {"f1": 0.2}),) * 2)
    journal.keep(done)
    journal.keep(Trial(key="b", number=0, about="too slow", state="left out", reason="why"))
    again = Journal.read(tmp_path / "run")
    assert is_tuned(tmp_path / "run")
    assert (again.setup, again.brackets, again.budget.left) == (journal.setup, journal.brackets, 60)
    assert [trial.key for trial in again.scored] == ["a"]
    assert math.isnan(again.trials["a"].metrics["f1"])
    assert again.trials["a"].parts[1][1] == {"f1": 0.2}
    assert again.trials["b"] == journal.trials["b"]
    assert again.next_number() == 2
    assert again.trials["a"].folder == "trials/01"


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9}', '{"version": 1, "trials": [{"key": "a"}]}'])
def test_damage_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TrainingError, match="damaged"):
        Journal.read(tmp_path)
