"""Fits of y = E + A x^-b by least squares (scipy), from several starts; and of a straight line in log x."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import DataError
from vitrail.lab.estimates import exponent
from vitrail.report.intervals import scipy_part, scipy_stats

POWERS = (-1.0, 3.0)
_STARTS = (0.1, 0.3, 0.6, 1.0, 1.6)


class PowerLaw(NamedTuple):
    """Floor E, scale A and power b of E + A x^-b."""

    floor: float
    scale: float
    power: float

    def __call__(self, x: float) -> float:
        """The value at x."""
        return self.floor + self.scale * x**-self.power


class LogLine(NamedTuple):
    """The straight line a + b log x."""

    start: float
    slope: float

    def __call__(self, x: float) -> float:
        """The value at x."""
        return self.start + self.slope * math.log(x)


class Fitted(NamedTuple):
    """A law, the share of the variance that it leaves, and the share of starts that ended at it."""

    law: PowerLaw
    left: float
    agree: float


def fit_power_law(x: Sequence[float], y: Sequence[float]) -> Fitted:
    """The law with the smallest squares over all starts, with E from 0 to the smallest y and b from -1 to 3."""
    if len(x) < 4 or min(*x, *y) <= 0:
        raise DataError(f"a power law with an offset needs four points above 0, got {len(x)}")
    known, values = np.asarray(x, float), np.asarray(y, float)
    middle = float(np.exp(np.log(known).mean()))
    bounds = ([0.0, 0.0, POWERS[0]], [values.min(), np.inf, POWERS[1]])

    def missed(numbers: Any) -> Any:
        return numbers[0] + numbers[1] * (known / middle) ** -numbers[2] - values

    fitted = scipy_part("optimize").least_squares
    ends = []
    for power in _STARTS:
        for share in (0.1, 0.9):
            floor = share * values.min()
            start = [floor, max(values.mean() - floor, 1e-6), power]
            ends.append(fitted(missed, start, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12))
    best = min(ends, key=lambda end: end.cost)
    spread = float(((values - values.mean()) ** 2).sum())
    close = [end for end in ends if abs(end.x[2] - best.x[2]) <= 0.01 * max(abs(best.x[2]), 0.01)]
    floor, scale, power = (float(number) for number in best.x)
    left = 2 * float(best.cost) / spread if spread else 1.0
    return Fitted(PowerLaw(floor, scale * middle**power, power), left, len(close) / len(ends))


def fit_log_line(x: Sequence[float], y: Sequence[float]) -> LogLine:
    """The straight line in log x with the smallest squares."""
    found = scipy_stats().linregress(np.log(np.asarray(x, float)), np.asarray(y, float))
    return LogLine(float(found.intercept), float(found.slope))


def left_by_power(x: Sequence[float], y: Sequence[float]) -> float:
    """The share of the variance of log y that a power of x leaves; all of it where a y is not above 0."""
    if min(y) <= 0:
        return 1.0
    return 1 - float(scipy_stats().linregress(np.log(np.asarray(x, float)), np.log(np.asarray(y, float))).rvalue) ** 2


def growth(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of y by x, without an offset; 0 where y is the same everywhere."""
    return 0.0 if max(y) == min(y) else exponent(x, y)
