"""Whether settings differ, and not only these trained models: runs of the same settings with several seeds together."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np

from vitrail.comparison.difference import Difference, with_holm
from vitrail.report.intervals import scipy_stats

CHANCE = {"seed", "machine.threads"}  # settings that no one chooses for their effect


class OverSeeds(NamedTuple):
    """Two groups of runs by their numbers, their mean metrics, and the second less the first by Welch's t-test."""

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
    """All pairs of groups that have two runs each or more; p is corrected for their number (Holm).

    `settings` are those that differ, by run; `metric` has a number for each run.
    """
    named = [values for name, values in settings.items() if name not in CHANCE]
    groups: dict[tuple[str, ...], list[int]] = {}
    for run in range(len(metric)):
        groups.setdefault(tuple(values[run] for values in named), []).append(run)
    several = [runs for runs in groups.values() if len(runs) > 1]
    pairs = list(combinations(several, 2))
    changes = with_holm([_welch([metric[run] for run in one], [metric[run] for run in other]) for one, other in pairs])
    return [
        OverSeeds(one, other, (fmean(metric[run] for run in one), fmean(metric[run] for run in other)), change)
        for (one, other), change in zip(pairs, changes, strict=True)
    ]


def _welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The difference of two means, with its interval and p; without these where runs do not differ by their seed."""
    value = fmean(second) - fmean(first)
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return Difference(value, None, None)
    test = scipy_stats().ttest_ind(second, first, equal_var=False)
    ends = test.confidence_interval(0.95)
    known = math.isfinite(test.pvalue) and math.isfinite(ends.low)
    return Difference(
        value, (float(ends.low), float(ends.high)) if known else None, float(test.pvalue) if known else None
    )
