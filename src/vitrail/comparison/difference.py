"""Whether a difference between two runs is more than the choice of test images: paired bootstrap and McNemar's test.

Both runs answer the same images, so images are resampled once for all of them, and differences are taken in each
resample. A resample repeats images, and average precision of repeated images is a little too high: intervals and
p-values are those of the bias-corrected bootstrap (Efron 1981). P-values of several comparisons are corrected by
Holm's method (1979).
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.comparison.by_image import Key, Seen
from vitrail.report.intervals import scipy_stats

Floats = NDArray[np.float64]
LEVEL = 0.05
MOST, _LEAST = 1000, 100  # resamples
_FEW = 20  # resamples on the other side, twice: fewer do not tell how rare that is
_MOST_BIAS = 1.645  # deviations: 95 % of resamples lie on one side of the value
_SAME = 1e-9  # by which numbers may differ through rounding
_SECONDS = 60.0  # that resampling may take by default


class Resampled(NamedTuple):
    """The metrics of all runs in each resample of the images: runs K R; NaN where one cannot be measured."""

    keys: Sequence[Key]
    values: Floats

    def of(self, run: int, key: Key) -> Floats:
        """The resamples R of a metric of one run."""
        found: Floats = self.values[run, self.keys.index(key)]
        return found

    def interval(self, run: int, key: Key, value: float) -> tuple[float, float] | None:
        """The 95 % interval of a metric of one run; `value` is that of all images."""
        return _ends(self.of(run, key), value)


class Difference(NamedTuple):
    """The second run less the first: the value, its 95 % interval, and p, plain and corrected."""

    value: float
    interval: tuple[float, float] | None
    p: float | None
    corrected: float | None = None

    @property
    def real(self) -> bool:
        """Whether it is shown that the runs differ."""
        return self.corrected is not None and self.corrected < LEVEL


class Discordant(NamedTuple):
    """Images on which one of two runs alone is right, and McNemar's exact p."""

    first: int
    second: int
    p: float
    images: int


def resample(seen: Sequence[Seen], keys: Sequence[Key], *, count: int | None = None, seed: int = 0) -> Resampled:
    """Draws units with replacement, and computes the metrics of each run of those drawn.

    Without a `count`, 1,000 times, or fewer where that would take a core longer than a minute.
    """
    units = np.array(sorted(set.intersection(*(set(one.meters) for one in seen))))

    def measured(drawn: Any) -> list[float]:
        found = [one.of_units(drawn.tolist()) for one in seen]
        return [one.get(key, np.nan) for one in found for key in keys]

    def statistic(drawn: Any, axis: int = -1) -> Any:
        rows = drawn[None] if drawn.ndim == 1 else drawn
        values = np.array([measured(row) for row in rows]).T  # runs x K, R
        return values[:, 0] if drawn.ndim == 1 else values

    began = time.process_time()
    statistic(units)
    taken = time.process_time() - began
    draws = count or int(np.clip(_SECONDS / max(taken, 1e-9), _LEAST, MOST))
    stats, chance = scipy_stats(), np.random.default_rng(seed)
    with warnings.catch_warnings():  # a metric that is not defined has no interval, which is no fault
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (units,), statistic, n_resamples=draws, batch=1, vectorized=True, method="percentile", rng=chance
        )
    return Resampled(keys, np.asarray(found.bootstrap_distribution).reshape(len(seen), len(keys), draws))


def difference(drawn: Resampled, first: int, second: int, key: Key, value: float) -> Difference:
    """Of a metric; `value` is the difference on all images."""
    change = drawn.of(second, key) - drawn.of(first, key)
    ends = _ends(change, value)
    return Difference(value, ends, None if ends is None else _two_sided(change[np.isfinite(change)], value))


def _ends(values: Floats, value: float) -> tuple[float, float] | None:
    """The bias-corrected 95 % interval of resamples.

    None where most of them cannot be measured, or nearly all lie on one side of the value.
    """
    known = values[np.isfinite(values)]
    if 2 * len(known) < len(values) or not len(known) or not np.isfinite(value):
        return None
    norm, bias = scipy_stats().norm, _bias(known, value)
    if abs(bias) > _MOST_BIAS:
        return None
    shares = norm.cdf(2 * bias + norm.ppf((LEVEL / 2, 1 - LEVEL / 2)))
    low, high = np.quantile(known, shares)
    return float(low), float(high)


def _bias(values: Floats, value: float) -> float:
    """How far the value lies from the median of resamples, in deviations of a normal curve: negative below it."""
    below, same = values < value - _SAME, np.abs(values - value) <= _SAME
    least = 0.5 / len(values)
    return float(scipy_stats().norm.ppf(np.clip(below.mean() + same.mean() / 2, least, 1 - least)))


def _two_sided(change: Floats, value: float) -> float:
    """The level whose bias-corrected interval ends at no difference; of a normal curve where resamples are too few."""
    count, norm, spread = len(change) + 1, scipy_stats().norm, float(change.std())
    sides = ((change <= _SAME).sum() + 1) / count, ((change >= -_SAME).sum() + 1) / count
    share = float(min(*sides, 0.5))
    if spread <= _SAME:
        return 2 * share
    few = 2 * share <= _FEW / count
    beyond = abs(float(change.mean())) / spread if few else -norm.ppf(share)  # deviations to no difference
    side = 1 if sides[0] < sides[1] else -1
    p = 2 * float(norm.sf(abs(beyond + side * 2 * _bias(change, value))))
    return min(_FEW / count, p) if few else p


def mcnemar(first: Mapping[int, bool], second: Mapping[int, bool]) -> Discordant:
    """The exact test of McNemar (1947): whether images that one run alone has right are as likely either way."""
    numbers = first.keys() & second.keys()
    one = sum(first[number] and not second[number] for number in numbers)
    other = sum(second[number] and not first[number] for number in numbers)
    p = float(scipy_stats().binomtest(one, one + other, 0.5).pvalue) if one + other else 1.0
    return Discordant(one, other, p, len(numbers))


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for being so many, in their order (Holm 1979); scipy has no such correction."""
    corrected, highest = [1.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = highest
    return corrected


def with_holm(found: Sequence[Difference]) -> list[Difference]:
    """Differences with their p corrected for all of them together."""
    known = [index for index, one in enumerate(found) if one.p is not None]
    values = dict(zip(known, holm([float(found[index].p or 0.0) for index in known]), strict=True))
    return [one._replace(corrected=values.get(index)) for index, one in enumerate(found)]
