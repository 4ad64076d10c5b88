"""Evaluation: one pass over images gives metrics, examples and speed; a report is made of these."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.data.dataset import Batch, Dataset
from vitrail.data.feeds.choice import make_feed, open_images
from vitrail.data.feeds.feed import Feed
from vitrail.data.feeds.pack_size import stored_as
from vitrail.data.sources.opening import open_whole, survey
from vitrail.data.split import align
from vitrail.errors import CheckpointError, ConfigError, DataError, Unsupported
from vitrail.report import Facts, Group, Report, Text
from vitrail.report.metric import figures
from vitrail.report.sections import Section, result_facts, skipped_table
from vitrail.runs.leakage import trained_on
from vitrail.runs.picture_batches import PictureBatches
from vitrail.runs.predict import not_finite
from vitrail.runs.predictor import Predictor, whole_pictures
from vitrail.runs.record import Record, wanted_columns
from vitrail.runs.tta import COUNT, AveragedViews, Views
from vitrail.tasks.answer import NO_EXAMPLES, Example, Examples
from vitrail.tasks.task import Outputs, Task, finite_rows

_WORST, _FIRST = 24, 12  # examples that a report shows
_NAMED = 10  # broken images that it names
KEPT = 5000  # images whose outputs are kept for calibration, the first ones
COMPARED = 2000  # images on which answers in fewer bits are compared with those in float32, the first ones
KEPT_NUMBERS = 1 << 27  # of outputs that are kept: maps of many images would fill the memory

Infer = Callable[[Tensor], Outputs]  # stored images uint8 B C H W -> outputs
OnBatch = Callable[[Outputs, Batch], None]  # what else is done with each batch and its outputs


class Evaluated(Protocol):
    """Batches of images with targets: a feed, or pictures at their own sizes."""

    waited: float

    @property
    def data(self) -> Any:
        """What has the `name` of the images, and those that were `skipped`."""

    @property
    def device(self) -> Any:
        """Where the batches are."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All batches."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What one pass over images found."""

    task: Task
    results: Mapping[str, Any]
    worst: tuple[Example, ...]
    first: tuple[Example, ...]
    outputs: Mapping[str, Tensor]  # of the first images
    targets: Mapping[str, Tensor]
    seconds: float
    waited: float  # for data
    device: str
    name: str
    skipped: tuple[tuple[str, str], ...] = ()
    note: str | None = None  # that the model was trained on some of the images
    views: "Evaluation | None" = None  # the same with the mean over test-time views
    kind_of_views: Views | None = None
    same: tuple[int, int] | None = None  # images with the answer of float32, and those that were compared

    @property
    def metrics(self) -> dict[str, float]:
        """The plain numbers."""
        return numbers(self.results)

    def report(self, title: str | None = None, *, pictures: bool = False) -> Report:
        """The result, what the task shows of it, and the speed; with `pictures` also the worst images, for a page."""
        count = int(self.results["images"])
        intervals = self.task.intervals(self.results)
        found = figures(self.results, self.task.about_metrics, intervals)
        speed = Facts(
            "Speed",
            {
                "images per second": count / self.seconds,
                "seconds": self.seconds,
                "waiting for data": self.waited / self.seconds,
                "device": self.device,
                "images left out as broken": len(self.skipped),
            },
            {"images per second": "si", "waiting for data": "share"},
        )
        held = [] if self.note is None else [Text("Not held out", self.note)]
        sections: list[Section] = [*held, result_facts(found), *self._same_facts(), *self._views_facts()]
        examples = Examples(worst=self.worst) if pictures else NO_EXAMPLES
        sections += [*self.task.sections(self.results, examples), speed]
        if self.skipped:
            few = f", the first {_NAMED} of {len(self.skipped):,}" if len(self.skipped) > _NAMED else ""
            sections.append(skipped_table(f"Images left out as broken{few}", self.skipped[:_NAMED]))
        return Report(title or f"{self.name}: {count:,} images", tuple(sections))

    def _same_facts(self) -> list[Section]:
        """How often a model in fewer bits has the answers of float32."""
        if self.same is None:
            return []
        equal, count = self.same
        facts: dict[str, Any] = {"same answer": equal / count, "images compared": count}
        return [Facts("Beside float32", facts, {"same answer": "share"})]

    def _views_facts(self) -> list[Section]:
        """What test-time views change, apart from the result."""
        if self.views is None or self.kind_of_views is None:
            return []
        found = figures(self.views.results, self.task.about_metrics, self.task.intervals(self.views.results))
        title = f"With test-time {self.kind_of_views} ({COUNT[self.kind_of_views]} views an image)"
        slower = Facts("", {"times as long": self.views.seconds / self.seconds})
        return [Group(title, (replace(result_facts(found), title=""), slower))]

    def __repr__(self) -> str:
        return f"Evaluation({self.task.lead(self.results)})"


class _Examples:
    """Keeps the worst images and the first ones."""

    def __init__(self, task: Task, names: Callable[[int], str]) -> None:
        self.task, self.names = task, names
        self.worst: list[Example] = []
        self.first: list[Example] = []
        self._shown: set[str] = set()

    def update(self, outputs: Outputs, batch: Batch) -> None:
        errors = self.task.errors(outputs, batch.targets).float().cpu()
        top = [index for index in errors.argsort(descending=True)[:_WORST].tolist() if errors[index] > 0]
        fresh = self._fresh(batch) if len(self.first) < _FIRST else []
        chosen = sorted({*top, *fresh})
        if not chosen:
            return
        some = {name: values[chosen] for name, values in outputs.items()}
        try:
            answers: list[Any] = list(self.task.decode(some))
        except Unsupported:  # a task without answers
            answers = [None] * len(chosen)
        made = {
            index: self._example(batch, index, answer, float(errors[index]))
            for index, answer in zip(chosen, answers, strict=True)
        }
        self.first += [made[index] for index in fresh]
        self.worst = sorted([*self.worst, *(made[index] for index in top)], key=lambda one: -one.error)[:_WORST]

    def _fresh(self, batch: Batch) -> list[int]:
        """Images whose truth was not shown yet: one of each class, or the first ones where every truth differs."""
        found: list[int] = []
        for index in range(len(batch.ids)):
            truth = self._truth(batch, index)
            if truth not in self._shown or not truth:
                self._shown.add(truth)
                found.append(index)
            if len(self.first) + len(found) >= _FIRST:
                break
        return found

    def _truth(self, batch: Batch, index: int) -> str:
        known = self.task.schema.items()
        return "; ".join(target.text(batch.targets[name][index].cpu()) for name, target in known)

    def _example(self, batch: Batch, index: int, answer: Any, error: float) -> Example:
        truth = self._truth(batch, index)
        values = {name: batch.targets[name][index].cpu().clone() for name in self.task.schema}
        image = batch.images[index].cpu().clone()
        return Example(image, self.names(int(batch.ids[index])), truth, answer, error, values)


class _Kept:
    """Keeps outputs and targets of the first images; where sizes differ, of those of the first size."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Tensor]] = []
        self.targets: list[dict[str, Tensor]] = []
        self._images = self._numbers = 0

    def add(self, outputs: Outputs, targets: Mapping[str, Tensor]) -> None:
        values = dict(outputs), dict(targets)
        if self._images >= KEPT or self._numbers >= KEPT_NUMBERS or not self._fits(*values):
            return
        for kept, new in zip((self.outputs, self.targets), values, strict=True):
            kept.append({name: tensor.cpu() for name, tensor in new.items()})
        self._images += len(next(iter(outputs.values())))
        self._numbers += sum(tensor.numel() for tensor in outputs.values())

    def _fits(self, *values: Mapping[str, Tensor]) -> bool:
        if not self.outputs:
            return True
        pairs = zip((self.outputs[0], self.targets[0]), values, strict=True)
        return all(one[name].shape[1:] == new[name].shape[1:] for one, new in pairs for name in one)

    @staticmethod
    def joined(kept: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([one[name] for one in kept]) for name in kept[0]}


@torch.no_grad()
def evaluate(
    task: Task,
    batches: Evaluated,
    infer: Infer,
    *,
    names: Callable[[int], str] = "image {:,}".format,
    autocast: Callable[[], Any] = nullcontext,
    on_batch: OnBatch | None = None,
) -> Evaluation:
    """One pass over stored images: `infer` computes outputs, `names` names a sample by its number."""
    meter, examples = task.metrics(), _Examples(task, names)
    kept = _Kept()
    waited, began = batches.waited, time.perf_counter()
    for batch in batches.epoch(0):
        with autocast():
            outputs = infer(batch.images)
        outputs = {name: values.float() for name, values in outputs.items()}
        meter.update(outputs, batch.targets)
        examples.update(outputs, batch)
        kept.add(outputs, batch.targets)
        if on_batch is not None:
            on_batch(outputs, batch)
    results = meter.compute()  # waits for the device
    return Evaluation(
        task=task,
        results=results,
        worst=tuple(examples.worst),
        first=tuple(examples.first),
        outputs=kept.joined(kept.outputs),
        targets=kept.joined(kept.targets),
        seconds=time.perf_counter() - began,
        waited=batches.waited - waited,
        device=str(batches.device),
        name=batches.data.name,
        skipped=batches.data.skipped,
    )


def evaluate_model(
    model: Predictor, batches: Feed, *, names: Callable[[int], str] = "image {:,}".format,
    on_batch: OnBatch | None = None,
) -> Evaluation:  # fmt: skip
    """One pass of a trained or exported model over stored images."""
    fitted = batches.data.prepare(model.preprocess) == model.preprocess.normalise

    def infer(images: Tensor) -> Outputs:
        outputs = model.outputs(images if fitted else model.preprocess.fit(images)[0])
        return _finite(model, batches.data.name, outputs)

    return evaluate(model.task, batches, infer, names=names, on_batch=on_batch)


def _finite(model: Predictor, name: str, outputs: Outputs) -> Outputs:
    """The same outputs; CheckpointError where a number is not finite."""
    if not all(finite_rows(outputs)):
        raise CheckpointError(not_finite(model, name))
    return outputs


def evaluate_on(
    model: Predictor, data: str | Path | Dataset | None = None, *, label: str | Sequence[str] | None = None,
    batch_size: int = 256, tta: Views | None = None, on_batch: OnBatch | None = None,
) -> Evaluation:  # fmt: skip
    """Metrics on labelled images: anything that `train` takes, its test part where there is one, or a data set.

    Without `data` they are those of the run: its test images where there are some, else its validation images.
    `label` names the column of a table with the target, by default that of the run. `note` of the result says
    whether the run was trained or validated on some of these images. `tta` "flip" or "views" also measures the mean
    over test-time views of each image, as `views` of the result. `on_batch` is handed each batch with its outputs.
    """
    viewed = None if tta is None else AveragedViews(model, tta)
    schema, record, part = model.task.schema, getattr(model, "record", None), ""
    if isinstance(data, Dataset):
        dataset = align(data, schema)
    elif data is None:
        data, part, dataset = _own_images(model, record)
    else:
        wanted = wanted_columns(record, data, label, task=model.task.config)
        dataset = open_whole(data, schema=schema, wanted=wanted)
    name = dataset.name.removesuffix(part) + part  # rendered scenes name their part themselves
    found = replace(_measured(model, dataset, batch_size, on_batch), name=name)
    if (exact := getattr(model, "exact", None)) is not None:
        found = replace(found, same=_same(model, exact, dataset, batch_size))
    if viewed is not None:
        found = replace(found, views=_measured(viewed, dataset, batch_size), kind_of_views=tta)
    note = None
    if record is not None and not isinstance(data, Dataset):
        note = trained_on(getattr(model, "source", ""), str(data), dataset)
    return replace(found, note=note)


def _own_images(model: Predictor, record: Record | None) -> tuple[str, str, Dataset]:
    """The source of a run, and its test or validation images as they were split for it, with the name of the part."""
    name = getattr(model, "source", "") or "this model"
    if record is None or record.source is None:
        raise ConfigError(f"{name} does not say which data it was trained on; name some: vitrail eval {name} DATA")
    try:
        splits = survey(record.source, val=record.val, seed=record.seed, wanted=record.wanted)
    except DataError as error:
        raise DataError(f"{name} was trained on {record.source}: {error}; name other data to evaluate on") from error
    part, images = (" (test)", splits.test) if splits.test is not None else (" (validation)", splits.val)
    return record.source, part, align(images, record.schema)


def _measured(model: Predictor, dataset: Dataset, batch_size: int, on_batch: OnBatch | None = None) -> Evaluation:
    """One pass over stored images, or over pictures at sizes of their own, where the model reads those."""
    device = getattr(model, "device", "cpu")
    if (reader := whole_pictures(model)) is not None:

        def infer(pictures: Tensor) -> Outputs:
            (outputs,) = reader.outputs(list(pictures))
            return _finite(model, dataset.name, {name: values.cpu() for name, values in outputs.items()})

        batches: Evaluated = PictureBatches(dataset, device=device)
        return evaluate(model.task, batches, infer, names=dataset.key, on_batch=on_batch)
    return evaluate_model(model, _feed(model, dataset, batch_size), names=dataset.key, on_batch=on_batch)


def _feed(model: Predictor, dataset: Dataset, batch_size: int) -> Feed:
    images = open_images(dataset, stored_as(dataset, model.preprocess, cropped=False))
    return make_feed(images, batch_size=batch_size, seed=0, shuffle=False, device=getattr(model, "device", "cpu"))


def _same(model: Predictor, exact: Predictor, dataset: Dataset, batch_size: int) -> tuple[int, int]:
    """On how many of the first images a model has the answer of another one, and how many these are."""
    feed, task = _feed(model, dataset, batch_size), model.task
    fitted = feed.data.prepare(model.preprocess) == model.preprocess.normalise
    same = count = 0
    for batch in feed.epoch(0):
        images = batch.images if fitted else model.preprocess.fit(batch.images)[0]
        expected, found = (
            {name: values.cpu().numpy() for name, values in task.graph(one.outputs(images)).items()}
            for one in (exact, model)
        )
        same, count = same + int(task.same(expected, found).sum()), count + len(images)
        if count >= COMPARED:
            break
    return same, count


def numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers among some results, which may hold tensors of several, too."""
    return {
        name: float(value)
        for name, value in results.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)
    }
