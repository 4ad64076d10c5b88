"""Regret by hand: an assumption may put candidates in order, and is never said as points."""

import pytest
from support.advised import facts, result

from vitrail.advice.regret import below, difference, merit

FAR = {"images": 64_000, "pixels": 16}
ROWS = [result("probe", "a", 0.9), result("tune", "a", 0.8), result("tune", "far", 0.7, **FAR)]


def test_the_order_weighs_near_sets_most() -> None:
    # Set a is at distance 0, the other at 3 + 3: weights 4 and 1 / 42.25.
    far = 1 / (0.5 + 6) ** 2
    assert merit("probe", facts(), ROWS) == pytest.approx((4 * 0 + far * -0.1) / (4 + far))
    assert merit("tune", facts(), ROWS) == pytest.approx((4 * -0.1 + 0) / (4 + far))


def test_points_are_those_of_near_sets_that_were_measured() -> None:
    found = below("tune", facts(), [*ROWS, result("tune", "b", 0.5)])
    assert found is not None
    assert (found.share, found.sets) == (pytest.approx(-0.1), 1)  # nothing else was measured on b
    assert [row.set for row in found.rows] == ["a"]
    assert below("new", facts(), ROWS) is None
    assert below("tune", facts(**FAR), ROWS) is None  # alone there, and a is far


def test_a_difference_needs_sets_with_both() -> None:
    found = difference("probe", "tune", facts(), ROWS)
    assert found is not None
    assert (found.share, found.sets) == (pytest.approx(0.1), 1)
    assert difference("probe", "new", facts(), ROWS) is None
    assert difference("probe", "tune", facts(**FAR), ROWS) is None
