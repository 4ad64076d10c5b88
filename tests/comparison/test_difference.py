"""Differences with known answers: planted, absent, exact binomial p, and Holm's correction."""

import math

import numpy as np
import pytest
from support.compared_runs import seen_of

from vitrail.comparison.difference import Difference, Resampled, difference, holm, mcnemar, resample, with_holm

stats = pytest.importorskip("scipy.stats")
ACCURACY = ("accuracy", "")


def test_a_large_difference_is_real_and_lies_in_its_interval() -> None:
    one, other = seen_of([True] * 30 + [False] * 30), seen_of([True] * 55 + [False] * 5)
    drawn = resample([one, other], [ACCURACY], count=200)
    found = difference(drawn, 0, 1, ACCURACY, 25 / 60)
    assert found.interval is not None
    assert found.interval[0] < 25 / 60 < found.interval[1]
    # The spread of a mean of paired differences of 0 and 1.
    width = 2 * 1.96 * math.sqrt(25 / 60 * 35 / 60 / 60)
    assert found.interval[1] - found.interval[0] == pytest.approx(width, rel=0.25)
    assert found.p is not None
    assert found.p < 0.001


def test_the_same_answers_differ_by_nothing() -> None:
    seen = seen_of([True, False] * 10)
    found = difference(resample([seen, seen], [ACCURACY], count=50), 0, 1, ACCURACY, 0.0)
    assert found.interval == (0, 0)
    assert found.p == 1


def test_equally_good_runs_with_other_mistakes_are_not_told_apart() -> None:
    one, other = seen_of([True, False] * 20), seen_of([False, True] * 20)
    found = difference(resample([one, other], [ACCURACY], count=200), 0, 1, ACCURACY, 0.0)
    assert found.p is not None
    assert found.p > 0.3


def test_pairing_is_narrower_than_two_samples() -> None:
    one, other = seen_of([True] * 40 + [False] * 20), seen_of([True] * 42 + [False] * 18)
    drawn = resample([one, other], [ACCURACY], count=200)
    paired = difference(drawn, 0, 1, ACCURACY, 2 / 60).interval
    single = drawn.interval(0, ACCURACY, 40 / 60)
    assert paired is not None
    assert single is not None
    assert paired[1] - paired[0] < 0.6 * (single[1] - single[0])


def test_resamples_are_the_same_each_time() -> None:
    seen = [seen_of([True, False, False, True])] * 2
    first, again = (resample(seen, [ACCURACY], count=20).values for _ in range(2))
    assert np.array_equal(first, again)


def test_a_metric_that_is_rarely_defined_has_no_interval() -> None:
    seen = seen_of([True, False])
    key = ("recall", "bird")  # of a class that is not there
    drawn = resample([seen, seen], [key], count=20)
    assert difference(drawn, 0, 1, key, math.nan) == Difference(pytest.approx(math.nan, nan_ok=True), None, None)


def drawn_of(*runs: np.ndarray) -> Resampled:
    return Resampled([ACCURACY], np.stack(runs)[:, None])


def test_intervals_and_p_are_corrected_for_bias() -> None:
    normal = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    shifted = drawn_of(np.zeros(4000), 1.5 + 0.5 + normal)  # resamples are 0.5 too high
    found = difference(shifted, 0, 1, ACCURACY, 1.5)
    assert found.interval == pytest.approx((1 - 1.96, 1 + 1.96), abs=0.15)  # the estimate without its bias
    assert found.p == pytest.approx(2 * stats.norm.sf(1.0), abs=0.03)
    assert difference(drawn_of(normal + 1.5, np.zeros(4000)), 0, 1, ACCURACY, -1.5).p == pytest.approx(
        2 * stats.norm.sf(1.5), abs=0.03
    )
    far = difference(drawn_of(np.zeros(4000), normal + 10), 0, 1, ACCURACY, 10)
    assert far.p is not None
    assert far.p < 1e-10, "beyond what resamples can count"


def test_an_interval_ends_at_no_difference_where_p_is_its_level() -> None:
    values = np.random.default_rng(1).gamma(3, size=4000)
    for value in np.linspace(2, 6, 40):
        found = difference(drawn_of(np.zeros(4000), values - 3 + value), 0, 1, ACCURACY, value)
        assert found.interval is not None
        assert found.p is not None
        assert (found.interval[0] > 0) == (found.p < 0.05) or abs(found.p - 0.05) < 0.01


def test_resamples_on_one_side_of_the_value_tell_nothing() -> None:
    found = difference(drawn_of(np.zeros(200), np.linspace(1, 2, 200)), 0, 1, ACCURACY, 0.5)
    assert (found.interval, found.p) == (None, None)


def test_mcnemar_is_the_binomial_of_discordant_images() -> None:
    first = dict(enumerate([True] * 9 + [False] * 1 + [True] * 5))
    second = dict(enumerate([False] * 9 + [True] * 1 + [True] * 5))
    found = mcnemar(first, second)
    assert (found.first, found.second, found.images) == (9, 1, 15)
    assert found.p == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(first, first).p == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_holm_leaves_out_what_was_not_tested() -> None:
    known = Difference(0.1, (0.0, 0.2), 0.03)
    found = with_holm([known, Difference(math.nan, None, None), known])
    assert [one.corrected for one in found] == [0.06, None, 0.06]
    assert not found[0].real
    assert with_holm([known])[0].real
