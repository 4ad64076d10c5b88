"""What a comparison of runs found, and the same as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.comparison.by_image import Key
from vitrail.comparison.costs import RunCost
from vitrail.comparison.difference import Difference, Discordant
from vitrail.comparison.opened import ComparedRun
from vitrail.comparison.over_seeds import OverSeeds
from vitrail.comparison.shared_images import SharedImages
from vitrail.report.metric import Interval, Metric

_SAME = 1e-9


@dataclass(frozen=True)
class Pair:
    """Two runs by their numbers, how the metric that chooses between epochs differs, and who alone is right."""

    first: int
    second: int
    best: Difference
    discordant: Discordant | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Everything that was found of some runs; the first one is what the others are held against."""

    runs: Sequence[ComparedRun]
    images: SharedImages
    settings: Mapping[str, Sequence[str]]  # those that differ, by run
    best: Key
    metrics: Mapping[Key, Metric]
    values: Sequence[Mapping[Key, float]]  # by run
    intervals: Sequence[Interval | None]  # of the best metric, by run
    pairs: Sequence[Pair]
    others: Mapping[int, Mapping[Key, Difference]]  # run -> other metrics, against the first run
    parts: Mapping[int, Mapping[Key, Difference]]  # run -> metrics of each class, label or number
    costs: Sequence[RunCost]
    over_seeds: Sequence[OverSeeds]  # of the best metric
    resamples: int  # 0 where the task cannot be paired by image
    units: int
    notes: Sequence[str]

    def better(self, pair: Pair) -> int | None:
        """The number of the better run of a pair; None where no difference is shown."""
        if not pair.best.real or abs(pair.best.value) < _SAME:
            return None
        return pair.second if (pair.best.value > 0) == self.metrics[self.best].higher else pair.first


def to_data(found: Compared) -> dict[str, Any]:
    """Everything as plain data, for JSON; runs are named as in reports, and NaN is null."""
    names = [run.name for run in found.runs]

    def named(changes: Mapping[Key, Difference]) -> list[dict[str, Any]]:
        return [{"metric": key[0], **({"of": key[1]} if key[1] else {}), **_plain(one)} for key, one in changes.items()]

    return {
        "images": {"about": found.images.about, "count": len(found.images.dataset)},
        "best_metric": found.best[0],
        "runs": [
            {
                "name": run.name,
                "folder": str(run.folder),
                "metrics": {key[0]: value for key, value in values.items() if not key[1]},
                "of_each": [
                    {"metric": key[0], "of": key[1], "value": value} for key, value in values.items() if key[1]
                ],
                "interval": interval,
                "cost": cost._asdict(),
            }
            for run, values, interval, cost in zip(found.runs, found.values, found.intervals, found.costs, strict=True)
        ],
        "settings": {key: dict(zip(names, values, strict=True)) for key, values in found.settings.items()},
        "pairs": [
            {
                "first": names[pair.first],
                "second": names[pair.second],
                **_plain(pair.best),
                "mcnemar": None if pair.discordant is None else pair.discordant._asdict(),
                "better": None if (better := found.better(pair)) is None else names[better],
            }
            for pair in found.pairs
        ],
        "over_seeds": [
            {
                "first": [names[run] for run in one.first],
                "second": [names[run] for run in one.second],
                "means": list(one.means),
                **_plain(one.change),
            }
            for one in found.over_seeds
        ],
        "other_metrics": {names[run]: named(changes) for run, changes in found.others.items()},
        "of_each": {names[run]: named(changes) for run, changes in found.parts.items()},
        "resamples": found.resamples,
        "notes": list(found.notes),
    }


def _plain(one: Difference) -> dict[str, Any]:
    low, high = one.interval or (None, None)
    return {"difference": one.value, "low": low, "high": high, "p": one.p, "p_holm": one.corrected, "real": one.real}
