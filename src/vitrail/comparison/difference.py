"""Whether a difference between two runs is more than the choice of test images: paired bootstrap and McNemar's test.

Both runs answer the same images, so images are resampled once for all of them, and differences are taken in each
resample. P-values of several comparisons are corrected by Holm's method (1979).
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
_SECONDS = 60.0  # that resampling may take by default


class Resampled(NamedTuple):
    """The metrics of all runs in each resample of the images: runs K R; NaN where one cannot be measured."""

    keys: Sequence[Key]
    values: Floats

    def of(self, run: int, key: Key) -> Floats:
        """The resamples R of a metric of one run."""
        found: Floats = self.values[run, self.keys.index(key)]
        return found

    def interval(self, run: int, key: Key) -> tuple[float, float] | None:
        """The 95 % interval of a metric of one run."""
        return _ends(self.of(run, key))


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
    ends = _ends(change)
    return Difference(value, ends, None if ends is None else _two_sided(change[np.isfinite(change)]))


def _ends(values: Floats) -> tuple[float, float] | None:
    """The 95 % interval of resamples; None where most of them cannot be measured."""
    known = values[np.isfinite(values)]
    if 2 * len(known) < len(values) or not len(known):
        return None
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _two_sided(change: Floats) -> float:
    """Twice the share of resamples on the other side of no difference; where these are few, of a normal curve."""
    count = len(change) + 1
    sides = ((change <= 0).sum() + 1) / count, ((change >= 0).sum() + 1) / count
    share, spread = float(min(1.0, 2 * min(sides))), float(change.std())
    if share > _FEW / count or spread == 0:
        return share
    return min(_FEW / count, float(2 * scipy_stats().norm.sf(abs(float(change.mean())) / spread)))


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
