"""Numbers with intervals: means over seeds, slopes and exponents by least squares (scipy)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import DataError
from vitrail.report.intervals import scipy_stats

_RESAMPLES = 2000
_FEW = 10  # seeds below which resamples cannot say how far off a mean may be


class Estimate(NamedTuple):
    """A value, the ends of its 95 % interval, and how many seeds it rests on; one seed has no interval."""

    value: float
    low: float
    high: float
    seeds: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over seeds with its 95 % interval: Student's t below ten seeds, from there on the bootstrap.

    Means of resamples lie between the smallest and the largest value, so that their percentiles hold the true mean of
    normal numbers in 75 % of the cases with three seeds, and in 84 % with five, not in 95 %.
    """
    known = np.asarray(values, dtype=np.float64)
    if not len(known):
        raise DataError("a mean needs at least one value")
    if not np.isfinite(known).all():
        return Estimate(math.nan, -math.inf, math.inf, len(known))
    value = float(known.mean())
    if len(known) == 1 or np.ptp(known) == 0:
        return Estimate(value, value, value, len(known))
    stats = scipy_stats()
    if len(known) < _FEW:
        low, high = stats.t.interval(0.95, len(known) - 1, loc=value, scale=stats.sem(known))
        return Estimate(value, float(low), float(high), len(known))
    drawn = stats.bootstrap(
        (known,), np.mean, n_resamples=_RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return Estimate(value, float(drawn.confidence_interval.low), float(drawn.confidence_interval.high), len(known))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of a straight line through points, by least squares."""
    return float(scipy_stats().linregress(np.asarray(x, float), np.asarray(y, float)).slope)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law through points: the slope of log y by log x."""
    if min(*x, *y) <= 0:
        raise DataError("a power law needs positive numbers")
    return slope(np.log(x).tolist(), np.log(y).tolist())


def by_seed(results: Sequence[Mapping[str, Any]], *path: str | int) -> list[float]:
    """The number at a path of keys in the results of each seed."""
    found = []
    for result in results:
        value: Any = result
        for key in path:
            value = value[key]
        found.append(math.nan if value is None else float(value))
    return found


def curve(results: Sequence[Mapping[str, Any]], *path: str) -> list[Estimate]:
    """The numbers of a list at a path of keys, each as a mean over seeds."""
    value: Any = results[0]
    for key in path:
        value = value[key]
    return [estimate(by_seed(results, *path, index)) for index in range(len(value))]
