"""Settings over seeds: the groups, Welch's t-test by hand, and the sentence that says what it shows."""

import pytest
from scipy import stats

from vitrail.comparison.over_seeds import over_seeds

SETTINGS = {"optimiser.lr": ["0.1", "0.1", "0.2", "0.2", "0.3"], "seed": ["0", "1", "0", "1", "0"]}


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    (found,) = over_seeds(SETTINGS, [0.8, 0.81, 0.5, 0.52, 0.9])  # one run alone is no group
    assert (found.first, found.second) == ([0, 1], [2, 3])
    assert found.means == (pytest.approx(0.805), pytest.approx(0.51))
    expected = stats.ttest_ind([0.5, 0.52], [0.8, 0.81], equal_var=False)
    assert found.change.p == pytest.approx(expected.pvalue)
    assert found.change.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.better == "first"


def test_seeds_that_differ_as_much_as_settings_show_nothing() -> None:
    (found,) = over_seeds(SETTINGS, [0.8, 0.6, 0.7, 0.9, 0.1])
    assert found.better is None


def test_equal_runs_have_no_test_and_seeds_alone_no_groups() -> None:
    (found,) = over_seeds(SETTINGS, [0.8, 0.8, 0.7, 0.7, 0.1])
    assert (found.change.p, found.better) == (None, None)
    assert over_seeds({"seed": ["0", "1"]}, [0.8, 0.7]) == []
