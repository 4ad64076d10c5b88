"""What each run said of the same images: a meter for each image, so that metrics of any of them can be computed.

A meter of a task can be merged with others (`Task.metrics`). With more images than `UNITS`, one holds a random group
of them, and groups are resampled: the spread is the same, for fewer merges.
"""

import math
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitrail.data.dataset import Batch, Dataset
from vitrail.errors import DataError
from vitrail.report.metric import Metric
from vitrail.runs.evaluate import Evaluation, evaluate_on
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.repeated import Results, repeated
from vitrail.tasks.task import Meter, Outputs, Task

UNITS = 400
_ROOM = 256 << 20  # bytes that all meters of a run may take
_CLOSE = 1e-4  # by which a metric of merged meters may differ from that of the whole
Key = tuple[str, str]  # a metric, and the class, label or number that it is of; "" for all


class Units:
    """Which meter an image belongs to: one of its own, or that of a random group."""

    def __init__(self, images: int) -> None:
        self.images = images
        self.of = torch.arange(images)

    @property
    def count(self) -> int:
        """How many meters there are."""
        return int(self.of.max()) + 1 if self.images else 0

    def fit(self, meter_bytes: int) -> None:
        """Groups images where there are many, or where their meters are large."""
        most = max(min(UNITS, _ROOM // max(meter_bytes, 1)), 2)
        if self.count > most:
            order = torch.randperm(self.images, generator=torch.Generator().manual_seed(0))
            self.of = torch.empty(self.images, dtype=torch.int64)
            self.of[order] = torch.arange(self.images) % most


@dataclass(frozen=True)
class Seen:
    """What a run said of all images: the evaluation, a meter for each unit that had images, and which are right."""

    task: Task
    evaluation: Evaluation
    meters: Mapping[int, Meter]
    right: Mapping[int, bool] | None  # by image; None where answers are not right or wrong
    found: Mapping[Key, float]  # of the whole

    def of_units(self, units: Sequence[int]) -> dict[Key, float]:
        """The metrics of some units, which may be named several times; none where these cannot be measured."""
        times = Counter(units)
        try:
            return values_of(self.task, self._repeated([times[unit] for unit in self.meters]))
        except DataError:  # such as a label that no image has
            return {}

    @cached_property
    def _repeated(self) -> Results:
        return repeated(self.task.metrics(), list(self.meters.values()))

    def not_by_image(self) -> list[Key]:
        """The metrics that meters of images, merged, do not give again."""
        again = self.of_units(sorted(self.meters))
        return [
            key
            for key, value in self.found.items()
            if not math.isnan(value)
            and not math.isclose(value, again.get(key, math.nan), rel_tol=_CLOSE, abs_tol=_CLOSE)
        ]


def see(model: TrainedModel, dataset: Dataset, units: Units, *, batch_size: int, first: bool) -> Seen:
    """Evaluates a run on images, with a meter for each unit; the `first` one decides how images are grouped."""
    task = model.task
    meters: dict[int, Meter] = {}
    errors: dict[int, float] = {}

    def on_batch(outputs: Outputs, batch: Batch) -> None:
        rows = _Rows(outputs, batch.targets)
        if first and not meters:
            units.fit(len(pickle.dumps(rows.meter(task, 0))))
        wrong = task.errors(outputs, batch.targets).float().cpu().tolist()
        for row, number in enumerate(batch.ids.tolist()):
            errors[number] = wrong[row]
            meters.setdefault(int(units.of[number]), task.metrics()).update(*rows.of(row))

    evaluation = evaluate_on(model, dataset, batch_size=batch_size, on_batch=on_batch)
    answers = [example.answer for example in evaluation.first]
    decides = bool(answers) and all(getattr(answer, "decides", False) for answer in answers)
    right = {number: error == 0 for number, error in errors.items()} if decides else None
    return Seen(task, evaluation, meters, right, values_of(task, evaluation.results))


class _Rows:
    """The rows of a batch, one by one, on the CPU."""

    def __init__(self, outputs: Outputs, targets: Mapping[str, Tensor]) -> None:
        self.outputs = {name: values.detach().cpu() for name, values in outputs.items()}
        self.targets = {name: values.detach().cpu() for name, values in targets.items()}

    def of(self, row: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The outputs and targets of one image."""
        outputs = {name: values[row : row + 1] for name, values in self.outputs.items()}
        return outputs, {name: values[row : row + 1] for name, values in self.targets.items()}

    def meter(self, task: Task, row: int) -> Meter:
        """A meter of one image."""
        meter = task.metrics()
        meter.update(*self.of(row))
        return meter


def values_of(task: Task, results: Mapping[str, Any]) -> dict[Key, float]:
    """The metrics of results, and those of each class, label or number."""
    return {**dict(_overall(task, results)), **{
        (name, part): value for name, one in task.breakdowns(results).items() for part, value in one.values.items()
    }}  # fmt: skip


def _overall(task: Task, results: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    for name, metric in task.about_metrics.items():
        value = results.get(name)
        if isinstance(value, int | float) and not metric.curve_only:
            yield (name, ""), float(value)


def metric_of(task: Task, results: Mapping[str, Any], name: str) -> Metric:
    """How a metric is named and shown."""
    if name in task.about_metrics:
        return task.about_metrics[name]
    return task.breakdowns(results)[name].metric
