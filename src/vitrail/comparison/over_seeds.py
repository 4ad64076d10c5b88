"""Whether settings differ, and not only these trained models: runs of the same settings with several seeds together."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, variance
from typing import NamedTuple

from vitrail.comparison.difference import Difference, with_holm
from vitrail.report.intervals import scipy_stats

CHANCE = {"seed": "their seed", "machine.threads": "the number of threads"}  # no one chooses these for their effect
_ROUNDING = 1e-9  # of a number


class OverSeeds(NamedTuple):
    """Two groups of runs by their numbers, their means over seeds, and the second less the first by Welch's t-test."""

    first: Sequence[int]
    second: Sequence[int]
    means: tuple[float, float]
    change: Difference

    @property
    def better(self) -> str | None:
        """Whether the first or the second mean is larger, where that is shown."""
        if not self.change.real:
            return None
        return "second" if self.change.value > 0 else "first"


def over_seeds(settings: Mapping[str, Sequence[str]], metric: Sequence[float]) -> list[OverSeeds]:
    """All pairs of groups that have two seeds each or more; p is corrected for their number (Holm).

    `settings` are those that differ, by run; `metric` has a number for each run. Runs with the same seed count once, by
    their mean. A group with a metric that is not finite has no mean, and is left out.
    """
    named = [values for name, values in settings.items() if name not in CHANCE]
    groups: dict[tuple[str, ...], list[int]] = {}
    for run in range(len(metric)):
        groups.setdefault(tuple(values[run] for values in named), []).append(run)
    seeds = settings.get("seed", [""] * len(metric))
    known = [(runs, _by_seed(runs, seeds, metric)) for runs in groups.values()]
    several = [(runs, values) for runs, values in known if len(values) > 1 and all(map(math.isfinite, values))]
    pairs = list(combinations(several, 2))
    changes = with_holm([_welch(one, other) for (_, one), (_, other) in pairs])
    return [
        OverSeeds(first, second, (fmean(one), fmean(other)), change)
        for ((first, one), (second, other)), change in zip(pairs, changes, strict=True)
    ]


def _by_seed(runs: Sequence[int], seeds: Sequence[str], metric: Sequence[float]) -> list[float]:
    """A number for each seed: the mean of the runs with it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(seeds[run], []).append(metric[run])
    return [fmean(values) for values in found.values()]


def _welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The difference of two means, with its interval and p; without these where no group differs by its seeds."""
    value = fmean(second) - fmean(first)
    # The squared standard error of each mean and its degrees of freedom.
    errors = [(0.0 if _constant(one) else variance(one) / len(one), len(one) - 1) for one in (first, second)]
    squared = sum(error for error, _ in errors)
    if squared == 0:
        return Difference(value, None, None)
    freedom = squared**2 / sum(error**2 / each for error, each in errors)
    student, error = scipy_stats().t, math.sqrt(squared)
    half = float(student.ppf(0.975, freedom)) * error
    return Difference(value, (value - half, value + half), 2 * float(student.sf(abs(value) / error, freedom)))


def _constant(values: Sequence[float]) -> bool:
    """Whether numbers are the same but for rounding."""
    return max(values) - min(values) <= _ROUNDING * max(map(abs, values))
