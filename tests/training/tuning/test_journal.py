"""tuning.json: everything that decides comes back; damage is said."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import TrainingError
from vitrail.training.tuning.budget import Budget
from vitrail.training.tuning.halving import Rung
from vitrail.training.tuning.journal import FILE, Journal, Trial, is_tuned, over


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"data": "photos", "options": {"lr": 1}}, Budget("steps", 100, spent=40))
    journal.brackets.append([Rung(3, 10.0), Rung(1, 30.0)])
    journal.size = 256
    started = Trial(key="a", number=1, about="the default", traits={"method": "x"}, state="started", epochs=3)
    journal.keep(started)
    done = over(started, metrics={"accuracy": 0.5, "f1": math.nan}, parts=(({"f1": math.nan}, {"f1": 0.2}),) * 2)
    journal.keep(done)
    journal.keep(Trial(key="b", number=0, about="too slow", state="left out", reason="why"))
    again = Journal.read(tmp_path / "run")
    assert is_tuned(tmp_path / "run")
    assert (again.setup, again.brackets, again.budget.left) == (journal.setup, journal.brackets, 60)
    assert again.size == 256
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


TRIAL = {
    "key": "default", "number": 1, "about": "the default", "traits": {"method": "x"}, "state": "over", "epochs": 2,
    "epoch_cost": 1.0, "spent": 2.0, "seconds": 2.0, "metrics": {"accuracy": 0.5}, "parts": [], "reason": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"number": "../../other"}, {"number": -1}, {"number": 10**9}, {"number": True}, {"number": {}},
        {"key": {}}, {"about": None}, {"traits": ["x"]}, {"traits": {"x": 1}}, {"state": "lost"}, {"state": []},
        {"epochs": 1.5}, {"spent": "much"}, {"seconds": None}, {"metrics": [1]}, {"metrics": {"a": "b"}},
        {"parts": [1]}, {"parts": [[[], {}]]}, {"reason": 3}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_another_type_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    whole = {"version": 1, "data": "photos", "options": {}, "budget": {"kind": "steps", "total": 9.0, "spent": 0.0}}
    whole |= {"chosen": None, "brackets": [[[1, 9.0]]], "trials": [TRIAL]}
    (tmp_path / FILE).write_text(json.dumps(whole))
    assert Journal.read(tmp_path).next_number() == 2
    for wrong in (
        {"trials": [TRIAL | change]},
        {"chosen": 7},
        {"chosen": []},
        {"brackets": [[["a", "b"]]]},
        {"size": "x"},
    ):
        (tmp_path / FILE).write_text(json.dumps(whole | wrong))
        with pytest.raises(TrainingError, match="damaged"):
            Journal.read(tmp_path)
