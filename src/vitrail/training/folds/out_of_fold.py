"""Out-of-fold predictions: each image by the model whose fold held it out, pooled, with intervals."""

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.choice import make_feed, open_images
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.sources.opening import survey
from vitrail.data.split import align
from vitrail.errors import TrainingError, Unsupported
from vitrail.files import write_atomically
from vitrail.report.intervals import bootstrap, wilson
from vitrail.report.metric import Interval
from vitrail.runs.evaluate import numbers
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.strict_json import to_json
from vitrail.tasks.classify import Classify

_BATCH = 128
_CANDIDATES = 100  # of an answer in the table
# The 97.5 % quantile of Student's t by degrees of freedom, from 1 on; the normal one after the last.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.960


@dataclass(frozen=True, kw_only=True)
class Fold:
    """A fold that was trained, and what its model says of the images that it held out."""

    number: int
    model: TrainedModel
    data: Dataset  # the images that were held out
    ids: tuple[int, ...]  # those that could be read
    outputs: Mapping[str, Tensor]
    targets: Mapping[str, Tensor]

    @property
    def meter(self) -> Any:
        """A meter that has seen these images."""
        meter = self.model.task.metrics()
        meter.update(self.outputs, self.targets)
        return meter

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of the table for each image."""
        task = self.model.task
        try:
            answers = task.decode(self.outputs, top=max(1, min(len(task.output_names) or 5, _CANDIDATES)))
        except Unsupported:
            answers = []
        for at, index in enumerate(self.ids):
            truth = [target.text(self.targets[name][at]) for name, target in task.schema.items()]
            group = {} if self.data.groups is None else {"group": self.data.groups[index]}
            said = answers[at].row() if answers else {}
            yield {"image": self.data.key(index), "fold": self.number, **group, "truth": "; ".join(truth), **said}


def predict_fold(folder: Path, number: int, device: torch.device) -> Fold:
    """Opens the run of a fold and predicts the images that it held out."""
    model = open_model(folder).to(device)
    record = model.record
    if record is None or record.source is None:
        raise TrainingError(f"{folder} does not say which data it was trained on; start again in another folder")
    splits = survey(record.source, val=record.val, seed=record.seed, wanted=record.wanted)
    if splits.test is None:
        raise TrainingError(f"{folder} held no images out; start again in another folder")
    data = align(splits.test, record.schema)
    images = open_images(data, stored_as(data, model.preprocess, cropped=False))
    fitted = images.prepare(model.preprocess) == model.preprocess.normalise
    made, truths, ids = [], [], list[int]()
    for batch in make_feed(images, batch_size=_BATCH, seed=0, shuffle=False, device=device).epoch(0):
        outputs = model.outputs(batch.images if fitted else model.preprocess.fit(batch.images)[0])
        made.append({name: values.cpu() for name, values in outputs.items()})
        truths.append({name: values.cpu() for name, values in batch.targets.items()})
        ids += batch.ids.tolist()
    return Fold(number=number, model=model, data=data, ids=tuple(ids), outputs=_stacked(made), targets=_stacked(truths))


def _stacked(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def write_table(file: Path, folds: Sequence[Fold]) -> None:
    """A CSV file with a row for each image: its fold, its truth, and what was said of it."""
    rows = [row for fold in folds for row in fold.rows()]
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: to_json(cell) if isinstance(cell, list | dict) else cell for name, cell in row.items()})
    write_atomically(file, lambda new: new.write_text(text.getvalue(), encoding="utf-8"))


class Score(NamedTuple):
    """A metric over folds: mean, deviation, the interval of the mean, and the metric of all images together."""

    name: str
    mean: float
    deviation: float
    interval: Interval
    pooled: float
    pooled_interval: Interval | None


def scores(folds: Sequence[Fold], pooled: Mapping[str, Any]) -> list[Score]:
    """Every metric of the held-out images.

    The interval of a mean takes folds as independent, which they are not quite: they share training images. That of
    all images together resamples images, or groups of them.
    """
    each = [numbers(fold.meter.compute()) for fold in folds]
    intervals, found = _pooled_intervals(folds), []
    for name, value in numbers(pooled).items():
        values = [one[name] for one in each if name in one and math.isfinite(one[name])]
        if name == "images" or len(values) < 2:
            continue
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        student = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else _NORMAL
        half = student * deviation / math.sqrt(len(values))
        low, high = mean - half, mean + half
        if (metric := folds[0].model.task.about_metrics.get(name)) is not None and metric.unit == "share":
            low, high = max(low, 0.0), min(high, 1.0)
        found.append(Score(name, mean, deviation, (low, high), value, intervals.get(name)))
    return found


def pool(folds: Sequence[Fold]) -> Mapping[str, Any]:
    """The metrics of all images together."""
    first, *others = (fold.meter for fold in folds)
    for other in others:
        first.merge(other)
    found: Mapping[str, Any] = first.compute()
    return found


def _pooled_intervals(folds: Sequence[Fold]) -> dict[str, Interval]:
    """Of accuracy and balanced accuracy, by resampling images, or groups where images are in groups."""
    task = folds[0].model.task
    if not isinstance(task, Classify):
        return {}
    right, truth, names = [], [], list[str]()
    for fold in folds:
        own = fold.model.task
        assert isinstance(own, Classify)  # noqa: S101  (folds are of one task)
        truth.append(fold.targets[own.field])
        right.append(own.choose(fold.outputs["logits"]) == truth[-1])
        groups = fold.data.groups
        names += [f"{fold.number} {index}" if groups is None else groups[index] for index in fold.ids]
    labels, hits = torch.cat(truth).numpy(), torch.cat(right).numpy()
    numbers_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    rows, count = np.array([numbers_of[name] for name in names]), len(task.classes)
    table = np.zeros((len(numbers_of), 2 * count))  # G 2K: images of each class, and those that are right
    np.add.at(table, (rows, labels), 1)
    np.add.at(table, (rows[hits], count + labels[hits]), 1)

    def accuracy(means: Any) -> Any:
        return means[count:].sum(axis=0) / means[:count].sum(axis=0)

    def balanced(means: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nanmean(means[count:] / means[:count], axis=0)

    one_by_one = wilson(float(hits.mean()), len(table))  # groups count as one image each
    sure = len(table) == len(hits) or bool(hits.all())  # resampling what is all right says nothing
    found = {"accuracy": one_by_one if sure else bootstrap(table, accuracy)}
    return found if bool(hits.all()) else found | {"balanced_accuracy": bootstrap(table, balanced)}
