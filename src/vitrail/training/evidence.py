"""What a trained model does on pictures it has not learned from: where it errs, how sure it is, where it looks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts import Bin
from vitrail.data.augment import Prepare
from vitrail.data.colour import channel_values
from vitrail.data.dataset import Batch
from vitrail.errors import DataError, Unsupported
from vitrail.layers.block import Block
from vitrail.models.backbone import Backbone
from vitrail.models.vit import ViT
from vitrail.report import Value
from vitrail.tasks.task import Task

_GREY = 128  # where a patch is hidden
_SURE = 1.959964  # standard deviations on either side that hold 95 % of a normal distribution


class Picture(NamedTuple):
    """An image, uint8 C H W, with the truth, the prediction, its confidence, and what people call the sample."""

    image: Tensor
    truth: str
    predicted: str
    confidence: float
    name: str


class View(NamedTuple):
    """A picture, and how much the class token looks at each patch: h w."""

    picture: Picture
    attention: Tensor


class Rebuilt(NamedTuple):
    """An image, what of it a model was shown, and what it made of that, uint8 C H W each; and the sample's name."""

    image: Tensor
    shown: Tensor
    rebuilt: Tensor
    name: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that one pass over the validation images shows.

    `confusion` counts K K, rows the truth, and is None where an image may have several labels; `mistakes` come with the
    most confident first; `examples` are the first image of each class, right or wrong.
    """

    classes: tuple[str, ...]
    images: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    confusion: Tensor | None
    per_class: tuple[Mapping[str, Value], ...]
    calibration: tuple[Bin, ...]
    mistakes: tuple[Picture, ...]
    examples: tuple[Picture, ...]


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
    bins: int = 15,
) -> Evidence:
    """Runs a classifier over batches of stored images (uint8 B C H W) and gathers what a report shows.

    The task's `predict` gives `probabilities` and `chosen`, the classes that it settles for, B K each.
    `prepare` makes the model's input of them, `where` names a sample by its number. The task is left in the mode in
    which it came.
    """
    learning = task.training
    task.eval()
    wrong: list[Picture] = []
    first: dict[int, Picture] = {}
    said, true = [], []
    try:
        for batch in batches:
            results = task.predict(prepare(batch.images))
            probabilities, chosen = results["probabilities"].float().cpu(), results["chosen"].cpu()  # B K each
            answers = _answers(probabilities, chosen, batch.labels.cpu())
            said.append((probabilities, chosen))
            true.append(batch.labels.cpu())
            picture = partial(_picture, batch, answers, classes, where)
            wrong += map(picture, _surest_mistakes(answers, mistakes))
            wrong = sorted(wrong, key=lambda one: -one.confidence)[:mistakes]
            for label in [label for label in range(len(classes)) if label not in first][: examples - len(first)]:
                for index in answers.truth[:, label].nonzero()[:1, 0].tolist():
                    first[label] = picture(index)
    finally:
        task.train(learning)
    if not said:
        raise DataError("there are no images to evaluate on; the validation split is empty")
    probabilities, chosen = (torch.cat(part) for part in zip(*said, strict=True))
    labels = torch.cat(true)
    figures = (_several if labels.ndim == 2 else _single)(probabilities, chosen, labels, classes, bins)
    return Evidence(
        classes=tuple(classes),
        images=len(labels),
        mistakes=tuple(wrong),
        examples=tuple(first[label] for label in sorted(first)),
        **figures._asdict(),
    )


def class_attention(model: Backbone, images: Tensor) -> Tensor:
    """How much the class token looks at each patch in the last block, mean of the heads: float B C H W -> B h w.

    What it gives to itself and to other prefix tokens is left out, so that a map sums to at most 1. Unsupported, with
    the reason, for models without a class token that is read, or without an attention matrix.
    """
    if not isinstance(model, ViT):
        raise Unsupported(f"{type(model).__name__} has no class token whose attention could be shown")
    if not model.config.class_token:
        raise Unsupported("the model has no class token, so there is no attention of it to show")
    if not model.config.pool.needs_class_token:
        raise Unsupported(
            f"the head reads the pool {model.config.pool.kind!r}: where the class token looks says nothing"
        )
    if not len(model.blocks):
        raise Unsupported("the model has no blocks, so no token looks at another")
    learning = model.training
    model.eval()
    try:
        with torch.no_grad():
            tokens, grid = model.embed(images)
            for block in model.blocks[:-1]:
                tokens = block(tokens, grid)
            last = cast("Block", model.blocks[-1])
            read = last.norm1(tokens) if last.norm_placement == "pre" else tokens
            row = torch.zeros(1, dtype=torch.long, device=tokens.device)
            weights = last.attention.weights(read, grid, rows=row)[:, :, 0]  # B A P+N
    finally:
        model.train(learning)
    return weights[:, :, -grid[0] * grid[1] :].mean(dim=1).unflatten(1, grid).float()  # B h w


def views(model: Backbone, pictures: Sequence[Picture], *, prepare: Callable[[Tensor], Tensor]) -> tuple[View, ...]:
    """The pictures, each with what the class token looks at; Unsupported, with the reason, where that has no answer."""
    if not pictures:
        return ()
    images = torch.stack([picture.image for picture in pictures])  # B C H W
    maps = class_attention(model, prepare(images.to(next(model.parameters()).device))).cpu()
    return tuple(View(picture, attention) for picture, attention in zip(pictures, maps, strict=True))


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


class _Figures(NamedTuple):
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    confusion: Tensor | None
    per_class: tuple[dict[str, Value], ...]
    calibration: tuple[Bin, ...]


def _single(probabilities: Tensor, chosen: Tensor, labels: Tensor, classes: Sequence[str], bins: int) -> _Figures:
    """Figures where each image has one label: probabilities N K, chosen N K, labels N."""
    count, best = len(classes), chosen.int().argmax(dim=1)
    confidence = probabilities.gather(1, best[:, None])[:, 0]
    right = best == labels
    confusion = torch.bincount(labels * count + best, minlength=count * count).view(count, count)  # K K
    calibration = _bins(confidence, right, bins)
    accuracy = float(right.float().mean())
    metrics = {"accuracy": accuracy}
    if count > 5:
        top = probabilities.topk(5, dim=1).indices
        metrics["top5"] = float((top == labels[:, None]).any(dim=1).float().mean())
    metrics["nll"] = float(-probabilities.gather(1, labels[:, None]).clamp_min(1e-12).log().mean())
    metrics["ece"] = _gap(calibration)
    intervals = {name: interval(value, len(labels)) for name, value in metrics.items() if name in ("accuracy", "top5")}
    hits, given, said = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
    return _Figures(metrics, intervals, confusion, _rows(classes, hits, given, said), calibration)


def _several(probabilities: Tensor, said: Tensor, labels: Tensor, classes: Sequence[str], bins: int) -> _Figures:
    """Figures where an image may have several labels: probabilities, what was said, and labels, N K each."""
    truth = labels > 0.5
    calibration = _bins(probabilities.flatten(), truth.flatten(), bins)
    exact = float((truth == said).all(dim=1).float().mean())
    metrics = {
        "exact": exact,
        "label_accuracy": float((truth == said).float().mean()),
        "bce": float(F.binary_cross_entropy(probabilities, labels.float())),
        "ece": _gap(calibration),
    }
    hits = (truth & said).sum(dim=0)
    rows = _rows(classes, hits, truth.sum(dim=0), said.sum(dim=0))
    return _Figures(metrics, {"exact": interval(exact, len(labels))}, None, rows, calibration)


def _bins(confidence: Tensor, right: Tensor, count: int) -> tuple[Bin, ...]:
    """Bins of equal width over 0 to 1, in order."""
    place = (confidence * count).long().clamp(0, count - 1)
    number = torch.bincount(place, minlength=count)
    total = number.clamp_min(1).double()
    sure = torch.bincount(place, weights=confidence.double(), minlength=count) / total
    hits = torch.bincount(place, weights=right.double(), minlength=count) / total
    return tuple(Bin(*row) for row in zip(sure.tolist(), hits.tolist(), number.tolist(), strict=True))


def _gap(bins: Sequence[Bin]) -> float:
    """The expected calibration error (arXiv:1706.04599): the mean gap between confidence and accuracy."""
    return sum(one.size * abs(one.accuracy - one.confidence) for one in bins) / max(sum(one.size for one in bins), 1)


def _rows(classes: Sequence[str], hits: Tensor, given: Tensor, said: Tensor) -> tuple[dict[str, Value], ...]:
    """Recall, precision and F1 of each class, None where nothing can be said."""
    rows: list[dict[str, Value]] = []
    for name, hit, true, guessed in zip(classes, hits.tolist(), given.tolist(), said.tolist(), strict=True):
        rows.append(
            {
                "class": name,
                "images": true,
                "recall": hit / true if true else None,
                "precision": hit / guessed if guessed else None,
                "F1": 2 * hit / (true + guessed) if true + guessed else None,
            }
        )
    return tuple(rows)


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
