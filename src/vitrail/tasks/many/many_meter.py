"""The metrics of many tasks: those of each, and the mean of what each is chosen by."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets import Schema
from vitrail.errors import DataError
from vitrail.tasks.many.many_names import joined, part_of
from vitrail.tasks.repeated import Results, repeated
from vitrail.tasks.task import Meter, Outputs, Task

SCORE = "score"


class Known(NamedTuple):
    """The part of a batch whose images have the targets of a task."""

    rows: Tensor | None  # B bool; None: all
    targets: Targets

    def of(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows of other values, B ... each."""
        if self.rows is None:
            return dict(values)
        return {name: one[self.rows.to(one.device)] for name, one in values.items()}


def known_part(schema: Schema, targets: Targets) -> Known:
    """Those images of a batch, or of a dataset, that have all targets of a schema."""
    own = {name: targets[name] for name in schema}
    rows = known_rows(schema, own)
    if bool(rows.all()):
        return Known(None, own)
    return Known(rows, {name: values[rows] for name, values in own.items()})


def known_rows(schema: Schema, targets: Targets) -> Tensor:
    """Which images have all targets of a schema: B bool."""
    return torch.stack([target.known(targets[name]) for name, target in schema.items()]).all(dim=0)


class ManyMeter:
    """A meter of each task, which sees the images that have its targets."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.meters: dict[str, Meter] = {name: task.metrics() for name, task in tasks.items()}
        self.schemas = {name: task.schema for name, task in tasks.items()}
        self.best = {name: task.best_metric for name, task in tasks.items()}
        self.signs = {name: 1 if task.about_metrics[task.best_metric].higher else -1 for name, task in tasks.items()}
        self.images = 0

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in the outputs of all tasks."""
        for name, meter in self.meters.items():
            known = known_part(self.schemas[name], targets)
            meter.update(known.of(part_of(outputs, name)), known.targets)
        self.images += len(next(iter(targets.values())))

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        for name, meter in self.meters.items():
            meter.merge(other.meters[name])
        self.images += other.images

    def compute(self) -> Mapping[str, Any]:
        """The results of each task by full names, images, and `score`: the mean of the tasks' best metrics.

        A metric of which less is better counts with a minus.
        """
        return self._joined({name: meter.compute for name, meter in self.meters.items()}, self.images)

    def repeated(self, parts: Sequence[Self]) -> Results:
        """What `compute` gives of parts merged so many times each."""
        by_task = {name: repeated(meter, [part.meters[name] for part in parts]) for name, meter in self.meters.items()}

        def results(times: Sequence[int]) -> Mapping[str, Any]:
            images = sum(count * part.images for count, part in zip(times, parts, strict=True))
            return self._joined({name: partial(of_task, times) for name, of_task in by_task.items()}, images)

        return results

    def _joined(self, compute: Mapping[str, Callable[[], Mapping[str, Any]]], images: int) -> Mapping[str, Any]:
        found: dict[str, Mapping[str, Any]] = {}
        for name, computed in compute.items():
            try:
                found[name] = computed()
            except DataError as error:
                raise DataError(f"task {name!r}: {error}") from error
        best: Sequence[float] = [self.signs[name] * float(found[name][metric]) for name, metric in self.best.items()]
        return {SCORE: sum(best) / len(best), "images": images, **joined(found)}
