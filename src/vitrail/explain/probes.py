"""Probes: how well classes can be told from each layer of a model, by a linear map and by nearest neighbours.

report = probe(model, "photos/")
report.print(); report.to_html("probe.html")
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitrail import charts
from vitrail.charts import Curve
from vitrail.data.cache import Packed
from vitrail.errors import ConfigError
from vitrail.explain.probes_data import Layer, Pool, Reader, Source, divide
from vitrail.explain.probes_knn import Neighbours
from vitrail.explain.probes_linear import PENALTIES, Logistic, Moments
from vitrail.explain.subject import at_rest, subject
from vitrail.report import Facts, Picture, Report, Table, Unit, Value

Linear = Literal["ridge", "logistic"]
Scores = Callable[[Tensor], Tensor]  # B D -> B K
_INTERVAL = "95 % interval, at most \N{PLUS-MINUS SIGN}"


@dataclass(frozen=True)
class _Images:
    """The parts of the data, packed."""

    fit: Packed
    held: Packed
    test: Packed

    @property
    def num_classes(self) -> int:
        return len(self.fit.classes)


class _Bank(NamedTuple):
    """Features of images to learn from: as many as the memory allows, chosen by chance but always the same."""

    features: list[Tensor]  # M D for each layer
    labels: Tensor  # M
    held: Tensor  # M: whether an image is to choose penalties by


class _Fitted(NamedTuple):
    """The linear probe of one layer, and the penalty that the held-out images chose."""

    scores: Scores
    penalty: float


class _Judged(NamedTuple):
    """What the test images say of one layer."""

    layer: Layer
    linear: float
    neighbours: float
    penalty: float


def probe(
    model: nn.Module,
    data: Source,
    *,
    layers: Sequence[int] | None = None,
    pool: Pool = "auto",
    linear: Linear = "ridge",
    k: int = 20,
    temperature: float = 0.07,
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
    memory: int = 1 << 30,
    seed: int = 0,
) -> Report:
    """Linear and k-NN accuracy after each block (all by default; negative counts from the end) of a model or task.

    `data` is what `vitrail train` takes, or data sets; a test part is carved out where there is none. `prepare` makes
    the model's input of uint8 images, as its training did. Features pass by in batches; `memory` limits the bytes of
    those that are kept, as neighbours and for logistic regression.
    """
    if linear not in ("ridge", "logistic"):
        raise ConfigError(f"linear is {linear!r}; it must be 'ridge' or 'logistic'")
    if temperature <= 0:
        raise ConfigError(f"temperature is {temperature:g}; it must be greater than 0")
    backbone = subject(model)
    reader = Reader(backbone, layers=layers, pool=pool, prepare=prepare, batch_size=batch_size)
    parts = divide(data, seed=seed)
    images = _Images(*reader.packed(parts))
    with at_rest(backbone):
        found = reader.layers(images.fit)
        moments = [(Moments(images.num_classes), Moments(images.num_classes)) for _ in found]
        bank = _collect(reader, images, found, memory // (4 * sum(layer.width for layer in found)), moments)
        fitted = _ridge(reader, images, moments) if linear == "ridge" else _logistic(bank, images.num_classes)
        near = [
            # Taken out one by one, as each is copied: so no more than one is held twice.
            Neighbours(bank.features.pop(0), bank.labels, num_classes=images.num_classes, k=k, temperature=temperature)
            for _ in found
        ]
        right = _judge(reader, images.test, [[one.scores for one in fitted], [one.scores for one in near]])
    facts: dict[str, Value] = {
        "model": type(backbone).__name__,
        **_told(images, parts.how),
        "linear": f"{linear} regression on standardised features",
        "k-NN": f"{k} nearest by cosine of {len(bank.labels):,}, each vote exp(cosine / {temperature:g})",
    }
    accuracies = (right / len(images.test)).tolist()
    judged = [_Judged(*each) for each in zip(found, *accuracies, (one.penalty for one in fitted), strict=True)]
    return _report(f"{images.test.name}: what each layer knows", facts, judged)


def _told(images: _Images, how: str) -> dict[str, Value]:
    """What the data are."""
    return {
        "images to learn from": len(images.fit) + len(images.held),
        "of them, to choose the penalty by": len(images.held),
        "images to judge by": len(images.test),
        "these are": how,
        "classes": images.num_classes,
        "the most common class alone": int(images.test.labels.bincount().max()) / len(images.test),
        _INTERVAL: 0.98 / sqrt(len(images.test)),
    }


def _collect(
    reader: Reader, images: _Images, layers: Sequence[Layer], most: int, moments: Sequence[tuple[Moments, Moments]]
) -> _Bank:
    """One pass over the images to learn from: moments of those to fit on and of the held-out, features of `most`."""
    sizes = (len(images.fit), len(images.held))
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[order[: max(most, 1)]] = True
    count = int(chosen.sum())
    where = next(reader.model.parameters()).device
    bank = _Bank(
        [torch.empty(count, layer.width, device=where) for layer in layers],
        torch.empty(count, dtype=torch.long),
        torch.arange(sum(sizes))[chosen] >= sizes[0],
    )
    filled, begin = 0, 0
    for part, packed in enumerate((images.fit, images.held)):
        for vectors, labels, place in reader.read(packed):
            kept = chosen[begin + place.start : begin + place.stop]
            into = slice(filled, filled + int(kept.sum()))
            bank.labels[into] = labels.cpu()[kept]
            for store, moment, features in zip(bank.features, moments, vectors, strict=True):
                store[into] = features[kept.to(where)]
                moment[part].update(features, labels)
            filled = into.stop
        begin += sizes[part]
    return bank


def _ridge(reader: Reader, images: _Images, moments: Sequence[tuple[Moments, Moments]]) -> list[_Fitted]:
    """Ridge regressions of each layer: the penalty by the held-out images, the weights by these and all others."""
    paths = [fit.solve() for fit, _ in moments]
    tried = [[partial(path.scores, penalty=penalty) for path in paths] for penalty in PENALTIES]
    right = _judge(reader, images.held, tried)  # penalties L
    fitted = []
    for (whole, held), column in zip(moments, right.T, strict=True):
        whole.merge(held)
        penalty = PENALTIES[_best(column)]
        fitted.append(_Fitted(partial(whole.solve().scores, penalty=penalty), penalty))
    return fitted


def _logistic(bank: _Bank, num_classes: int) -> list[_Fitted]:
    """Logistic regressions of each layer, chosen and fitted likewise, on the images of the bank."""
    falling, found = PENALTIES[5:0:-1], list[_Fitted]()  # without a penalty to speak of, it would never end
    if bank.held.all() or not bank.held.any():
        raise ConfigError("memory is too small for logistic regression: the features that it holds are too few")
    for features in (one.cpu() for one in bank.features):
        fit, held = features[~bank.held], features[bank.held]
        tried = Logistic.fit(fit, bank.labels[~bank.held], num_classes, falling)
        truth = bank.labels[bank.held]
        right = torch.tensor([int((one.scores(held).argmax(dim=1) == truth).sum()) for one in tried])
        penalty = falling[int(right.argmax())]
        (last,) = Logistic.fit(features, bank.labels, num_classes, [penalty])
        found.append(_Fitted(last.scores, penalty))
    return found


def _best(right: Tensor) -> int:
    """The strongest of the penalties with most right answers: the simplest map that does as well as any."""
    return int((right == right.max()).nonzero()[-1])


def _judge(reader: Reader, packed: Packed, classifiers: Sequence[Sequence[Scores]]) -> Tensor:
    """How many images each of several classifiers of each layer gets right: ways L."""
    right = torch.zeros(len(classifiers), len(classifiers[0]), dtype=torch.float64)
    for vectors, labels, _ in reader.read(packed):
        truth = labels.cpu()
        for way, by_layer in enumerate(classifiers):
            for layer, (scores, features) in enumerate(zip(by_layer, vectors, strict=True)):
                right[way, layer] += int((scores(features).argmax(dim=1).cpu() == truth).sum())
    return right


def _report(title: str, facts: dict[str, Value], judged: Sequence[_Judged]) -> Report:
    facts["best layer, linear"] = max(judged, key=lambda one: (one.linear, -one.layer.number)).layer.number
    facts["best layer, k-NN"] = max(judged, key=lambda one: (one.neighbours, -one.layer.number)).layer.number
    rows: list[dict[str, Value]] = [
        {
            "layer": one.layer.number,
            "grid": one.layer.grid,
            "width": one.layer.width,
            "reads": one.layer.reads,
            "linear": one.linear,
            "k-NN": one.neighbours,
            "penalty": one.penalty,
        }
        for one in judged
    ]
    columns: dict[str, Unit] = {name: "share" if name in ("linear", "k-NN") else "" for name in rows[0]}
    curves = [
        Curve("linear", sorted((one.layer.number, one.linear) for one in judged)),
        Curve("k-NN", sorted((one.layer.number, one.neighbours) for one in judged)),
    ]
    chart = charts.curves("Accuracy", curves, x="layer", show=charts.percent, key=True)
    told = "The share of test images whose class is told right from the features after each block."
    units: dict[str, Unit] = {"the most common class alone": "share", _INTERVAL: "share"}
    sections = (Facts("Probe", facts, units), Table("By layer", columns, rows), Picture("By depth", chart, told))
    return Report(title, sections)
