"""Which trial is kept, and what its score is worth: the best of many is the best by chance, too.

Validation images are in a few parts. A trial replaces the default only where it is better by more than a standard
error, by the jackknife over these parts. The nested score repeats the choice without a part, and measures on that part
what was chosen: images that are measured on have no share in the choice.
"""

import copy
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from vitrail.data.feeds.choice import make_feed
from vitrail.runs.evaluate import numbers
from vitrail.tasks.task import Meter, Task
from vitrail.training.run import Run
from vitrail.training.tuning.journal import Trial

PARTS = 5
_LEAST = 5  # images of a part that is scored by itself: R2 of one or two can be any number
_BATCH = 64
Scores = Mapping[str, float]


@torch.no_grad()
def parted_scores(run: Run) -> tuple[tuple[Scores, Scores], ...]:
    """What a trial is chosen by, on each part of the validation images, and on all others; groups stay whole."""
    images, task, groups = run.packs.val, run.task, run.plan.data.val.groups
    feed = make_feed(images, batch_size=_BATCH, seed=0, shuffle=False, device=run.device)
    fitted = images.prepare(run.preprocess) == run.preprocess.normalise
    meters, counts = dict[int, Meter](), Counter[int]()
    for batch in feed.epoch(0):
        outputs = run.outputs(batch.images if fitted else run.preprocess.fit(batch.images)[0])
        names = (
            batch.ids.tolist() if groups is None else [zlib.crc32(groups[one].encode()) for one in batch.ids.tolist()]
        )
        parts = torch.tensor([name % PARTS for name in names])
        for part in parts.unique().tolist():
            rows = parts == part
            counts[part] += int(rows.sum())
            said, truth = ({name: one.cpu()[rows] for name, one in every.items()} for every in (outputs, batch.targets))
            meters.setdefault(part, task.metrics()).update(said, truth)
    if len(meters) < 2:
        return ()
    return tuple(
        (_told(task, [meters[part]]) if counts[part] >= _LEAST else {}, _told(task, _without(meters, part)))
        for part in sorted(meters)
    )


def _without(meters: Mapping[int, Meter], part: int) -> list[Meter]:
    return [meter for number, meter in meters.items() if number != part]


def _told(task: Task, meters: Sequence[Meter]) -> Scores:
    """What some parts together say: the best metric, and what decides between equals."""
    whole = copy.deepcopy(meters[0])
    for other in meters[1:]:
        whole.merge(other)
    found = numbers(whole.compute())
    return {name: found[name] for name in (task.best_metric, task.tie_metric) if name in found}


def gain(task: Task, trial: Trial, default: Trial) -> tuple[float, float]:
    """By how much a trial is better than the default, and the standard error of that; 0 where it is not known."""
    sign, name = _sign(task), task.best_metric
    found = sign * (trial.metrics[name] - default.metrics[name])
    each = [
        sign * (mine[1].get(name, math.nan) - other[1].get(name, math.nan))
        for mine, other in zip(trial.parts, default.parts, strict=False)
    ]
    each = [value for value in each if math.isfinite(value)]
    if len(each) < 2:
        return found, 0.0
    mean = math.fsum(each) / len(each)
    return found, math.sqrt((len(each) - 1) / len(each) * math.fsum((value - mean) ** 2 for value in each))


def choose(task: Task, trials: Sequence[Trial]) -> Trial:
    """The best trial, where it is better than the first by more than a standard error; else the first, the default."""
    return _chosen(task, trials, lambda trial: trial.metrics)


def nested_score(task: Task, trials: Sequence[Trial]) -> float | None:
    """The mean score of what is chosen without a part of the validation images, on that part; None where not known."""
    found = []
    for part in range(min(len(trial.parts) for trial in trials)):
        chosen = _chosen(task, trials, lambda trial, part=part: trial.parts[part][1])  # type: ignore[misc]
        found.append(chosen.parts[part][0].get(task.best_metric, math.nan))
    known = [value for value in found if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def _chosen(task: Task, trials: Sequence[Trial], scores: Callable[[Trial], Scores]) -> Trial:
    default, name = trials[0], task.best_metric
    best = default
    for trial in trials[1:]:
        ahead = _sign(task) * (scores(trial)[name] - scores(default)[name])
        if ahead > max(gain(task, trial, default)[1], 0.0) and task.is_better(scores(trial), scores(best)):
            best = trial
    return best


def _sign(task: Task) -> int:
    metric = task.about_metrics.get(task.best_metric)
    return -1 if metric is not None and not metric.higher else 1


def is_perfect(task: Task, trial: Trial) -> bool:
    """Whether nothing can be better: a share of 100 %."""
    metric = task.about_metrics.get(task.best_metric)
    return metric is not None and metric.higher and metric.unit == "share" and trial.metrics[task.best_metric] >= 1.0
