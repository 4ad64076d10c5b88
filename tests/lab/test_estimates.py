import math

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.lab.estimates import by_seed, curve, estimate, exponent, slope


def test_the_interval_of_a_mean_encloses_it_and_is_the_same_every_time() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    assert found == estimate([1.0, 2.0, 3.0, 4.0])
    assert found.low < found.value == 2.5 < found.high


def test_an_interval_of_three_seeds_by_the_table_of_t() -> None:
    """The deviation of 1, 2, 3 is 1, and t of 2 degrees of freedom 4.303."""
    found = estimate([1.0, 2.0, 3.0])
    assert found.high - found.value == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert found.value - found.low == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


@pytest.mark.parametrize(("seeds", "least"), [(3, 0.93), (5, 0.93), (10, 0.87)])
def test_intervals_hold_the_mean_about_as_often_as_they_say(seeds: int, least: float) -> None:
    drawn = np.random.default_rng(0).normal(size=(400, seeds))
    found = [estimate(values) for values in drawn]
    held = sum(one.low <= 0 <= one.high for one in found) / len(found)
    assert least < held < 0.98


def test_equal_values_and_one_seed_have_no_width() -> None:
    assert estimate([2.0, 2.0]) == (2.0, 2.0, 2.0, 2)
    assert estimate([2.0]).seeds == 1


def test_what_is_not_a_number_decides_nothing() -> None:
    found = estimate([1.0, math.nan])
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_power_laws() -> None:
    assert slope([0, 1, 2], [1, 3, 5]) == pytest.approx(2)
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    with pytest.raises(DataError, match="positive"):
        exponent([1, 2], [0, 1])
    with pytest.raises(DataError, match="one"):
        estimate([])


def test_values_and_curves_of_all_seeds() -> None:
    results = [{"a": {"b": [1.0, 2.0]}}, {"a": {"b": [3.0, None]}}]
    assert by_seed(results, "a", "b", 0) == [1.0, 3.0]
    first, second = curve(results, "a", "b")
    assert first.value == 2.0
    assert math.isnan(second.value)
