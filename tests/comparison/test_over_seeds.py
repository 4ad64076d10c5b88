"""Settings over seeds: one number for each seed, Welch's t-test by hand, and what it shows."""

import math
import warnings

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


def test_runs_with_one_seed_count_once() -> None:
    lr = ["0.1", "0.1", "0.2", "0.2"]
    repeated = {"optimiser.lr": lr, "seed": ["0", "0", "1", "1"], "machine.threads": ["1", "2", "1", "2"]}
    assert over_seeds(repeated, [0.8, 0.8, 0.7, 0.7]) == []
    assert over_seeds({"optimiser.lr": lr, "machine.threads": ["1", "2", "1", "2"]}, [0.8, 0.81, 0.7, 0.71]) == []
    settings = {name: [*values, *values] for name, values in SETTINGS.items()}
    (found,) = over_seeds(settings, [0.8, 0.81, 0.5, 0.52, 0.9, 0.82, 0.83, 0.52, 0.54, 0.9])
    assert found.first == [0, 1, 5, 6]
    assert found.means == (pytest.approx(0.815), pytest.approx(0.52))
    assert found.change.p == pytest.approx(stats.ttest_ind([0.81, 0.82], [0.51, 0.53], equal_var=False).pvalue)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_setting_with_a_metric_that_is_not_finite_is_left_out(value: float) -> None:
    assert over_seeds(SETTINGS, [0.8, value, 0.5, 0.52, 0.9]) == []


def test_a_group_that_no_seed_changes_has_no_spread_and_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = over_seeds(SETTINGS, [0.8, 0.8, 0.5, 0.52, 0.9])
        (rounded,) = over_seeds(SETTINGS, [0.8, math.nextafter(0.8, 1), 0.7, math.nextafter(0.7, 1), 0.9])
    assert found.change.p == pytest.approx(stats.ttest_1samp([0.5, 0.52], 0.8).pvalue)
    assert rounded.change.p is None
