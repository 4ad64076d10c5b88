"""What a trained model does on pictures it has not learned from: where it errs, how sure it is, where it looks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts import Bin
from vitrail.data.augment import Prepare
from vitrail.data.colour import channel_values
from vitrail.data.dataset import Batch
from vitrail.errors import DataError
from vitrail.models.backbone import Backbone
from vitrail.report import Table, Value
from vitrail.tasks.task import Task
from vitrail.training.overlay import light
from vitrail.training.validate import numbers

_GREY = 128  # where a patch is hidden
_COUNTED = ("accuracy", "top5", "exact")  # metrics that are shares of the images
_SURE = 1.959964  # standard deviations on either side that hold 95 % of a normal distribution


class Picture(NamedTuple):
    """An image, uint8 C H W, with the truth, the prediction, its confidence, and what people call the sample."""

    image: Tensor
    truth: str
    predicted: str
    confidence: float
    name: str


class View(NamedTuple):
    """A picture, and how bright each of its patches is in the model's eyes: h w."""

    picture: Picture
    light: Tensor


class Views(NamedTuple):
    """Pictures with the light over them; what it is in a few words, and in sentences."""

    shown: tuple[View, ...]
    words: str
    told: str


class Rebuilt(NamedTuple):
    """An image, what of it a model was shown, and what it made of that, uint8 C H W each; and the sample's name."""

    image: Tensor
    shown: Tensor
    rebuilt: Tensor
    name: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that one pass over the validation images shows.

    `metrics` are the numbers of the task's meter. `confusion` counts K K, rows the truth, and is None where an image
    may have several labels, or classes are very many; `mistakes` come with the most confident first; `examples` are
    the first image of each class, right or wrong.
    """

    classes: tuple[str, ...]
    images: int
    metrics: Mapping[str, float]
    confusion: Tensor | None
    per_class: tuple[Mapping[str, Value], ...]
    calibration: tuple[Bin, ...]
    mistakes: tuple[Picture, ...]
    examples: tuple[Picture, ...]

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % intervals of the metrics that are shares of the images."""
        return {name: interval(self.metrics[name], self.images) for name in _COUNTED if name in self.metrics}


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share among `count` independent trials (Wilson 1927)."""
    if count < 1:
        raise DataError(f"a share of {count} images has no interval; it takes at least one")
    square = _SURE**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _SURE / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


@torch.no_grad()
def collect(
    task: Task,
    batches: Iterable[Batch],
    *,
    prepare: Callable[[Tensor], Tensor],
    classes: Sequence[str],
    where: Callable[[int], str] = "image {:,}".format,
    mistakes: int = 24,
    examples: int = 8,
) -> Evidence:
    """Runs a classifier over batches of stored images (uint8 B C H W) and gathers what a report shows.

    The task's `predict` gives `outputs`, which its meter takes, `probabilities`, and `chosen`, the classes that it
    settles for, B K each. `prepare` makes the model's input of images, `where` names a sample by its number. The task
    is left in the mode in which it came.
    """
    learning = task.training
    task.eval()
    meter, seen = task.metrics(), 0
    wrong: list[Picture] = []
    first: dict[int, Picture] = {}
    try:
        for batch in batches:
            found = task.predict(prepare(batch.images))
            meter.update(found["outputs"], batch.labels)
            seen += len(batch.labels)
            answers = _answers(found["probabilities"].float().cpu(), found["chosen"].cpu(), batch.labels.cpu())
            picture = partial(_picture, batch, answers, classes, where)
            wrong += map(picture, _surest_mistakes(answers, mistakes))
            wrong = sorted(wrong, key=lambda one: -one.confidence)[:mistakes]
            for label in [label for label in range(len(classes)) if label not in first][: examples - len(first)]:
                for index in answers.truth[:, label].nonzero()[:1, 0].tolist():
                    first[label] = picture(index)
    finally:
        task.train(learning)
    if not seen:
        raise DataError("there are no images to evaluate on; the validation split is empty")
    results = meter.compute()
    return Evidence(
        classes=tuple(classes),
        images=seen,
        metrics={name: value for name, value in numbers(results).items() if name != "images"},
        confusion=results.get("confusion"),
        per_class=tuple(by_class(classes, results)),
        calibration=tuple(Bin(sure, right, int(size)) for size, sure, right in results["bins"].T.tolist()),
        mistakes=tuple(wrong),
        examples=tuple(first[label] for label in sorted(first)),
    )


def by_class(classes: Sequence[str], results: Mapping[str, Any]) -> list[dict[str, Value]]:
    """What a meter found of each class: a row with its name, None where nothing can be said."""
    several = "ap_of" in results
    columns = {"images": "support"}
    columns |= {"AP": "ap_of", "AUC": "auc_of", "threshold": "used"} if several else {}
    columns |= {"recall": "recall", "precision": "precision", "F1": "f1_of" if several else "f1"}
    found = {shown: results[name].tolist() for shown, name in columns.items()}
    return [
        {"class": label, **{shown: None if math.isnan(values[at]) else values[at] for shown, values in found.items()}}
        for at, label in enumerate(classes)
    ]


def views(model: Backbone, pictures: Sequence[Picture], *, prepare: Callable[[Tensor], Tensor]) -> Views | None:
    """The pictures under the light of where the model looks; Unsupported, with the reason, where that has no answer."""
    if not pictures:
        return None
    images = torch.stack([picture.image for picture in pictures])  # B C H W
    found = light(model, prepare(images.to(next(model.parameters()).device)))
    return Views(tuple(map(View, pictures, found.maps.cpu())), found.words, found.told)


@torch.no_grad()
def rebuild(
    task: Task, batch: Batch, *, prepare: Prepare, where: Callable[[int], str] = "image {:,}".format, most: int = 12
) -> tuple[Rebuilt, ...]:
    """The first images of a batch (uint8 B C H W) beside what a task rebuilds of them; hidden patches are shown grey.

    The task's `predict` gives `rebuilt` B C H W and `hidden` B h w. It is left in the mode in which it came.
    """
    learning = task.training
    task.eval()
    try:
        images = prepare(batch.images[:most])
        found = task.predict(images)
    finally:
        task.train(learning)
    mean, deviation = (channel_values(values, images.device) for values in (prepare.mean, prepare.std))
    truth, made = (
        ((pixels * deviation + mean).clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        for pixels in (images, found["rebuilt"].float())
    )
    hidden = F.interpolate(found["hidden"][:, None].float(), size=prepare.image_size).bool().cpu()  # B 1 H W
    names = [where(index) for index in batch.ids[:most].tolist()]
    return tuple(map(Rebuilt, truth, truth.masked_fill(hidden, _GREY), made, names))


class _Answers(NamedTuple):
    """A batch's labels as they are and as predicted, how sure the model is, and whether it errs."""

    truth: Tensor  # B K bool
    predicted: Tensor  # B K bool
    confidence: Tensor  # B
    wrong: Tensor  # B bool


def _answers(probabilities: Tensor, predicted: Tensor, labels: Tensor) -> _Answers:
    count = probabilities.shape[1]
    if labels.ndim == 1:
        truth = F.one_hot(labels, count).bool()
        return _Answers(
            truth, predicted, probabilities.where(predicted, 0.0).amax(dim=1), (truth != predicted).any(dim=1)
        )
    truth = labels > 0.5
    missed = truth != predicted  # B K
    sure = probabilities.where(predicted, 1 - probabilities)
    wrong = missed.any(dim=1)
    # A mistake is as confident as its worst label; a right answer is as confident as its least sure one.
    confidence = sure.where(missed, 0.0).amax(dim=1).where(wrong, sure.amin(dim=1))
    return _Answers(truth, predicted, confidence, wrong)


def _surest_mistakes(answers: _Answers, most: int) -> list[int]:
    """Which images of the batch are wrong, the most confident first."""
    sure = answers.confidence.where(answers.wrong, -1.0)
    return sure.topk(min(most, int(answers.wrong.sum()))).indices.tolist()


def _picture(
    batch: Batch, answers: _Answers, classes: Sequence[str], where: Callable[[int], str], index: int
) -> Picture:
    truth, predicted = (
        ", ".join(classes[label] for label in row[index].nonzero()[:, 0].tolist()) or "none"
        for row in (answers.truth, answers.predicted)
    )
    image = batch.images[index].cpu().clone()
    return Picture(image, truth, predicted, float(answers.confidence[index]), where(int(batch.ids[index])))


def confusions(confusion: Tensor, classes: Sequence[str], most: int = 12) -> list[dict[str, Value]]:
    """The most frequent mistakes of a confusion matrix K K: what was taken for what, how often, of how many."""
    given = confusion.sum(dim=1).tolist()
    wrong = confusion.clone().fill_diagonal_(0).flatten()
    count, place = wrong.sort(descending=True, stable=True)
    rows: list[dict[str, Value]] = []
    for times, index in zip(count[:most].tolist(), place[:most].tolist(), strict=True):
        truth, said = divmod(index, len(classes))
        if times:
            share = times / given[truth]
            rows.append({"is": classes[truth], "taken for": classes[said], "images": times, "of its class": share})
    return rows


def left_out(title: str, skipped: Sequence[tuple[str, str]]) -> Table:
    """Images that could not be read, and why: a reason that begins with the name does not say it again."""
    rows = [{"image": name, "reason": reason.removeprefix(f"{name} ")} for name, reason in skipped]
    return Table(title, {"image": "", "reason": ""}, rows)
