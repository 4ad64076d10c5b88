"""95 % intervals: published values, coverage, and the same result each time."""

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.report.intervals import bootstrap, wilson


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.5, 100, (0.4038, 0.5962)), (0.0, 10, (0.0, 0.2775)), (1.0, 10, (0.7225, 1.0)), (0.9, 1000, (0.8798, 0.9171))],
)
def test_interval_of_a_share(share, count, expected):
    assert wilson(share, count) == pytest.approx(expected, abs=1e-4)


def test_the_bootstrap_of_a_mean_is_near_the_normal_interval_and_repeats():
    values = np.random.default_rng(1).normal(5, 2, 400)
    low, high = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert bootstrap(values) == (low, high)
    assert bootstrap(values, seed=1) != (low, high)


def test_a_statistic_of_several_means():
    values = np.random.default_rng(1).uniform(1, 2, (200, 2))
    low, high = bootstrap(values, lambda means: means[0] / means[1])
    assert low < values[:, 0].mean() / values[:, 1].mean() < high
    assert np.isnan(bootstrap(values, lambda means: means[0] * np.nan)).all()


@pytest.mark.parametrize("call", [lambda: wilson(0.5, 0), lambda: bootstrap([])])
def test_no_samples_are_refused(call):
    with pytest.raises(DataError, match="one"):
        call()
