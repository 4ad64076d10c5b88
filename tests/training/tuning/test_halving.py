"""Rungs: each spends the same, the last is one trial, and short budgets have fewer of them."""

import pytest

from vitrail.training.tuning.halving import plan_rungs


@pytest.mark.parametrize(
    ("amount", "candidates", "trials"),
    [(10, 27, []), (20, 27, [1]), (119, 27, [1]), (120, 27, [3, 1]), (540, 27, [9, 3, 1]), (5000, 27, [27, 9, 3, 1])],
)
def test_a_larger_budget_has_more_rungs(amount: float, candidates: int, trials: list[int]) -> None:
    rungs = plan_rungs(amount, 20, candidates=candidates)
    assert [rung.trials for rung in rungs] == trials
    assert all(rung.each >= 20 for rung in rungs)
    for rung in rungs:
        assert rung.trials * rung.each == pytest.approx(amount / len(rungs))


def test_few_candidates_get_longer_trials() -> None:
    assert [rung.trials for rung in plan_rungs(5000, 20, candidates=5)] == [3, 1]
    assert plan_rungs(5000, 20, candidates=0) == []
