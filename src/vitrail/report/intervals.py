"""95 % intervals: Wilson's for shares, the bootstrap for means and what is computed from means."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitrail.errors import ConfigError, DataError
from vitrail.report.metric import Interval

Floats = NDArray[np.float64]

_DEVIATIONS = 1.959964  # standard deviations on either side that hold 95 % of a normal distribution
_MOST, _LEAST, _DRAWS = 1000, 200, 20_000_000  # resamples, and random numbers in all


def wilson(share: float, count: int) -> Interval:
    """The 95 % interval of a share among `count` independent trials (Wilson 1927)."""
    if count < 1:
        raise DataError(f"a share of {count} samples has no interval: at least one sample is needed")
    square = _DEVIATIONS**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _DEVIATIONS / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: ArrayLike, statistic: Callable[[Floats], Floats] | None = None, *, seed: int = 0) -> Interval:
    """The 95 % interval of a mean, or of a statistic of several means, by resampling rows (percentile bootstrap).

    `values` is N or N C, one row a sample. `statistic` maps the means C R of R resamples to R numbers; without one
    it is the mean of the only column. The same values and seed give the same interval.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table  # N C
    count = len(table)
    if count < 1:
        raise DataError("the bootstrap needs at least one sample")
    random = np.random.default_rng(seed)
    resamples = int(np.clip(_DRAWS // count, _LEAST, _MOST))
    means = np.stack([_resampled(table, random) for _ in range(resamples)], axis=1)  # C R
    drawn = means[0] if statistic is None else statistic(means)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return math.nan, math.nan
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def _resampled(table: Floats, random: np.random.Generator) -> Floats:
    """The means of the columns C over N rows drawn with replacement."""
    drawn = np.bincount(random.integers(0, len(table), len(table)), minlength=len(table))
    return drawn @ table / len(table)


def scipy_part(name: str) -> Any:
    """A part of scipy, such as "stats"; they load late, because they take a second."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError as error:
        raise ConfigError("statistics need scipy: pip install scipy") from error


def scipy_stats() -> Any:
    """scipy.stats."""
    return scipy_part("stats")
