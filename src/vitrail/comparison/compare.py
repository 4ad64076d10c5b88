"""Compares runs of one task on the same images."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from vitrail.comparison.by_image import Key, Seen, Units, metric_of, see
from vitrail.comparison.costs import costs
from vitrail.comparison.difference import MOST, Difference, Resampled, difference, mcnemar, resample, with_holm
from vitrail.comparison.opened import open_runs
from vitrail.comparison.over_seeds import over_seeds
from vitrail.comparison.page import report, sentences
from vitrail.comparison.result import Compared, Pair, to_data
from vitrail.comparison.settings import differing
from vitrail.comparison.shared_images import named_images, own_images
from vitrail.errors import ConfigError, DataError
from vitrail.report import Report
from vitrail.strict_json import to_json

_SAME = 1e-9


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of one task on the same images; print `.report()`, or write `.to_html(path)` and `.to_json()`."""

    found: Compared

    def report(self) -> Report:
        """The verdict, settings, curves, differences by class, and cost."""
        return report(self.found)

    def to_html(self, path: str | Path) -> str:
        """The report as one HTML file that needs no network."""
        return self.report().to_html(path)

    def to_json(self) -> str:
        """Everything as plain data."""
        return to_json(to_data(self.found), indent=2)

    def __repr__(self) -> str:
        return f"Comparison({' '.join(sentences(self.found))})"


def compare_runs(
    folders: Sequence[str | Path],
    *,
    device: torch.device,
    data: str | Path | None = None,
    label: str | Sequence[str] | None = None,
    resamples: int | None = None,
    batch_size: int = 256,
) -> Comparison:
    """Evaluates the runs on the same images: their own test images, or those of `data`."""
    if resamples is not None and resamples < 1:
        raise ConfigError(f"--resamples {resamples} is not allowed: must be 1 or more")
    runs = open_runs(folders, device=device)
    images = own_images(runs) if data is None else named_images(runs, data, label=label)
    units = Units(len(images.dataset))
    seen = [
        see(run.model, images.dataset, units, batch_size=batch_size, first=not index) for index, run in enumerate(runs)
    ]
    notes = [*images.notes, *_skipped(seen)]
    best = (seen[0].task.best_metric, "")
    lost = {key for one in seen for key in one.not_by_image()}
    keys = [key for key in seen[0].found if key not in lost and all(key in one.found for one in seen)]
    notes += _lost_notes(seen[0], best, lost)
    drawn = resample(seen, keys, count=resamples) if best in keys and units.count > 1 else None
    if drawn is not None and resamples is None and drawn.values.shape[-1] < MOST:
        notes.append(
            f"Images were resampled {drawn.values.shape[-1]} times, since {MOST} times would take a core more than a "
            f"minute; --resamples {MOST} gives finer p-values."
        )
    others, parts = _against_first(seen, drawn, best)
    settings = differing([run.record for run in runs])
    return Comparison(Compared(
        runs=runs,
        images=images,
        settings=settings,
        best=best,
        metrics={key: metric_of(one.task, one.evaluation.results, key[0]) for one in seen for key in one.found},
        values=[one.found for one in seen],
        intervals=[
            None if drawn is None else drawn.interval(index, best, one.found[best]) for index, one in enumerate(seen)
        ],
        pairs=_pairs(seen, drawn, best),
        others=others,
        parts=parts,
        costs=costs(runs),
        over_seeds=over_seeds(settings, [one.found[best] for one in seen]),
        resamples=0 if drawn is None else drawn.values.shape[-1],
        units=units.count,
        notes=notes,
    ))  # fmt: skip


def _skipped(seen: Sequence[Seen]) -> list[str]:
    count = len(seen[0].evaluation.skipped)
    if any(one.meters.keys() != seen[0].meters.keys() for one in seen):
        raise DataError("the runs could not read the same images; remove those that are broken (vitrail doctor)")
    return [f"{count:,} images could not be read and are left out."] if count else []


def _lost_notes(seen: Seen, best: Key, lost: set[Key]) -> list[str]:
    """What cannot be paired by image, in sentences."""
    if best in lost:
        name = metric_of(seen.task, seen.evaluation.results, best[0]).title
        return [
            f"The task {seen.task.config.kind!r} cannot be paired by image: its {name} is not that of its images taken "
            "together, so it is not known whether a difference is real."
        ]
    names = dict.fromkeys(metric_of(seen.task, seen.evaluation.results, key[0]).title for key in lost)
    return [f"Not tested, since they cannot be computed from images one by one: {', '.join(names)}."] if names else []


def _pairs(seen: Sequence[Seen], drawn: Resampled | None, best: Key) -> list[Pair]:
    """All pairs, with p corrected for their number."""
    found, tests = [], []
    for first, second in combinations(range(len(seen)), 2):
        value = seen[second].found[best] - seen[first].found[best]
        one, other = seen[first].right, seen[second].right
        test = None if one is None or other is None else mcnemar(one, other)
        change = Difference(value, None, None) if drawn is None else difference(drawn, first, second, best, value)
        if test is not None and all(_is_share_of_right(one, best) for one in (seen[first], seen[second])):
            change = change._replace(p=test.p)  # exact, where the bootstrap is not
        found.append((first, second, change))
        tests.append(test)
    corrected = with_holm([change for _, _, change in found])
    return [
        Pair(first, second, change, test)
        for (first, second, _), change, test in zip(found, corrected, tests, strict=True)
    ]


def _is_share_of_right(seen: Seen, key: Key) -> bool:
    """Whether a metric is the share of images that are right."""
    right = seen.right or {}
    return bool(right) and abs(sum(right.values()) / len(right) - seen.found[key]) < _SAME


def _against_first(
    seen: Sequence[Seen], drawn: Resampled | None, best: Key
) -> tuple[dict[int, dict[Key, Difference]], dict[int, dict[Key, Difference]]]:
    """Other metrics, and those of each class, of each run against the first; each kind is corrected by itself."""
    if drawn is None:
        return {}, {}
    tables: list[dict[int, dict[Key, Difference]]] = []
    for keys in ([key for key in drawn.keys if not key[1] and key != best], [key for key in drawn.keys if key[1]]):
        rows = [(run, key) for run in range(1, len(seen)) for key in keys]
        found = [difference(drawn, 0, run, key, seen[run].found[key] - seen[0].found[key]) for run, key in rows]
        table: dict[int, dict[Key, Difference]] = {run: {} for run in range(1, len(seen))}
        for (run, key), change in zip(rows, with_holm(found), strict=True):
            table[run][key] = change
        tables.append(table)
    return tables[0], tables[1]
