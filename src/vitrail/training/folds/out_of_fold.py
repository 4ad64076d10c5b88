"""Out-of-fold predictions: each image by the model whose fold held it out, pooled, with intervals."""

import copy
import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.choice import make_feed, open_images
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.sources.opening import survey
from vitrail.data.split import align
from vitrail.errors import TrainingError, Unsupported
from vitrail.files import write_atomically
from vitrail.report.metric import Interval
from vitrail.runs.evaluate import numbers
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.safe_cells import safe_cell
from vitrail.strict_json import to_json
from vitrail.tasks.task import HeldOut

_BATCH = 128
_CANDIDATES = 100  # of an answer in the table
# The 97.5 % quantile of Student's t by degrees of freedom, from 1 on; the normal one after the last.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL = 1.960


class Fold:
    """A fold that was trained, and what its model says of the images that it held out.

    `meter` and `rows` are filled batch by batch; outputs are kept where the task says so, others may be large.
    """

    def __init__(self, number: int, model: TrainedModel, data: Dataset) -> None:
        self.number, self.model, self.data = number, model, data
        self.meter, self.rows, self.ids = model.task.metrics(), list[dict[str, Any]](), list[int]()
        self._kept: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = []

    def add(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], ids: Sequence[int]) -> None:
        """Takes in a batch of outputs for held-out images of these numbers, all on the CPU."""
        task = self.model.task
        self.meter.update(outputs, targets)
        try:
            answers = task.decode(outputs, top=max(1, min(len(task.output_names) or 5, _CANDIDATES)))
            said = [answer.row() for answer in answers]
        except Unsupported:  # a task without answers
            said = [{} for _ in ids]
        for at, index in enumerate(ids):
            truth = [target.text(targets[name][at]) for name, target in task.schema.items()]
            group = {} if self.data.groups is None else {"group": self.data.groups[index]}
            row = {"image": self.data.key(index), "fold": self.number, **group, "truth": "; ".join(truth), **said[at]}
            self.rows.append(row)
        self.ids += ids
        if task.kept_outputs:
            self._kept.append(({name: outputs[name] for name in task.kept_outputs}, targets))

    def held_out(self) -> HeldOut:
        """What was kept of all held-out images."""
        outputs, targets = (
            {name: torch.cat([one[name] for one in parts]) for name in parts[0]}
            for parts in zip(*self._kept, strict=True)
        )
        groups = self.data.groups
        names = [f"{self.number} {index}" if groups is None else groups[index] for index in self.ids]
        return HeldOut(self.model.task, outputs, targets, names)


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
    fold = Fold(number, model, data)
    for batch in make_feed(images, batch_size=_BATCH, seed=0, shuffle=False, device=device).epoch(0):
        outputs = model.outputs(batch.images if fitted else model.preprocess.fit(batch.images)[0])
        made, truths = ({name: one.cpu() for name, one in some.items()} for some in (outputs, batch.targets))
        fold.add(made, truths, batch.ids.tolist())
    return fold


def write_table(file: Path, folds: Sequence[Fold]) -> None:
    """A CSV file with a row for each image: its fold, its truth, and what was said of it."""
    rows = [row for fold in folds for row in fold.rows]
    text = io.StringIO()
    names, table = list(rows[0]), csv.writer(text, lineterminator="\n")
    table.writerow(map(safe_cell, names))
    for row in rows:
        cells = (row[name] for name in names)
        table.writerow(safe_cell(to_json(cell) if isinstance(cell, list | dict) else cell) for cell in cells)
    data = text.getvalue().encode(errors="surrogateescape")  # names of files may be any bytes
    write_atomically(file, lambda new: new.write_bytes(data))


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
    task, found = folds[0].model.task, []
    intervals = task.pooled_intervals([fold.held_out() for fold in folds]) if task.kept_outputs else {}
    for name, value in numbers(pooled).items():
        values = [one[name] for one in each if name in one and math.isfinite(one[name])]
        if name == "images" or len(values) < 2:
            continue
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        student = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else _NORMAL
        half = student * deviation / math.sqrt(len(values))
        low, high = mean - half, mean + half
        if (metric := task.about_metrics.get(name)) is not None and metric.unit == "share":
            low, high = max(low, 0.0), min(high, 1.0)
        found.append(Score(name, mean, deviation, (low, high), value, intervals.get(name)))
    return found


def pool(folds: Sequence[Fold]) -> Mapping[str, Any]:
    """The metrics of all images together."""
    whole = copy.deepcopy(folds[0].meter)
    for other in folds[1:]:
        whole.merge(other.meter)
    found: Mapping[str, Any] = whole.compute()
    return found
