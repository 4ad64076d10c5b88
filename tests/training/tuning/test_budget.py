"""Budgets: time passes, steps are charged, and both go on after a kill."""

import pytest

from vitrail.errors import ConfigError
from vitrail.training.tuning.budget import Budget


def test_steps_are_spent_as_they_are_charged() -> None:
    budget = Budget.of(None, 100)
    budget.charge(30)
    assert (budget.spent, budget.left) == (30, 70)
    again = Budget.from_dict(budget.to_dict())
    assert again.left == 70
    assert again.text(again.left) == "70 steps"


def test_time_passes_by_itself_until_it_is_stopped() -> None:
    budget = Budget.from_dict({"kind": "seconds", "total": 60, "spent": 10})
    first = budget.spent
    assert first > 10
    budget.charge(1000)
    assert first <= budget.spent < 60
    budget.stop()
    assert budget.spent == budget.spent
    assert budget.text(90) == "1 min 30 s"


@pytest.mark.parametrize(("minutes", "steps"), [(None, None), (1, 1), (0, None), (-1, None), (float("nan"), None)])
def test_a_budget_is_minutes_or_steps_and_above_zero(minutes: float | None, steps: int | None) -> None:
    with pytest.raises(ConfigError, match="minutes"):
        Budget.of(minutes, steps)
    with pytest.raises(ConfigError, match="steps"):
        Budget.of(None, 0)
    with pytest.raises(ValueError, match="apples"):
        Budget.from_dict({"kind": "apples", "total": 1, "spent": 0})
