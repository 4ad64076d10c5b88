"""Differences with known answers: planted, absent, exact binomial p, and Holm's correction."""

import math

import numpy as np
import pytest
from support.compared_runs import seen_of

from vitrail.comparison.difference import Difference, difference, holm, mcnemar, resample, with_holm

pytest.importorskip("scipy")
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
    single = drawn.interval(0, ACCURACY)
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
