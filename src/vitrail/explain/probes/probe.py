"""Probes: how well targets can be predicted from each layer of a model, by a linear map and by nearest neighbours.

report = probe(model, "photos/")
report.print(); report.to_html("probe.html")
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.data.feeds.feed import ImageSet
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.explain.probes.features import Layer, Pool, Reader, Source, divide
from vitrail.explain.probes.knn import Neighbours
from vitrail.explain.probes.linear import PENALTIES, Logistic, Moments
from vitrail.explain.probes.outcome import Outcome, outcome_of
from vitrail.explain.unwrap import backbone_of, eval_mode
from vitrail.report import Facts, Picture, Report, Table, Unit, Value, charts
from vitrail.report.charts import Curve

Linear = Literal["ridge", "logistic"]
Predict = Callable[[Tensor], Tensor]  # B D -> B K


@dataclass(frozen=True)
class _Images:
    """The parts of the data, and what is predicted."""

    fit: ImageSet
    validation: ImageSet
    test: ImageSet
    outcome: Outcome


class _Bank(NamedTuple):
    """Features of training images: as many as the memory allows, chosen at random but always the same."""

    features: list[Tensor]  # M D for each layer
    values: Tensor  # M ...
    validation: Tensor  # M: whether an image is there to choose penalties


class _Fitted(NamedTuple):
    """The linear probe of one layer, and the penalty that the validation images chose."""

    predict: Predict
    penalty: float


class _Tested(NamedTuple):
    """The scores of one layer on test images."""

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
    preprocess: Preprocess | None = None,
    batch_size: int = 256,
    memory: int = 1 << 30,
    seed: int = 0,
) -> Report:
    """Linear and k-NN probes after each block (all by default; negative counts from the end) of a model or task.

    `data` are what `vitrail train` takes, with classes (the score is accuracy) or numbers (R2); a test part is split
    off if there is none. `preprocess` is the model's by default. Features are read in batches; `memory` limits the
    bytes of those that are kept, as neighbours and for logistic regression.
    """
    _check(linear, temperature)
    backbone = backbone_of(model)
    reader = Reader(backbone, layers=layers, pool=pool, preprocess=preprocess, batch_size=batch_size)
    parts = divide(data, seed=seed)
    outcome = outcome_of(parts.fit.name, parts.fit.schema)
    parts = parts.annotated(outcome.field)
    if linear == "logistic" and outcome.metric != "accuracy":
        raise ConfigError("linear is 'logistic', but the data have numbers; use 'ridge'")
    images = _Images(*reader.open(parts), outcome)
    with eval_mode(backbone), torch.no_grad():
        every = reader.layers()
        moments = [(Moments(), Moments()) for _ in every]
        bank = _collect(reader, images, every, memory // (4 * sum(layer.width for layer in every)), moments)
        fitted = _ridge(reader, images, moments) if linear == "ridge" else _logistic(bank, outcome.num_outputs)
        near = [
            # Taken out one by one, as each is copied: so no more than one is in memory twice.
            Neighbours(bank.features.pop(0), bank.values, num_outputs=outcome.num_outputs, k=k, temperature=temperature)
            for _ in every
        ]
        ways: list[list[Predict]] = [[one.predict for one in fitted], [one.predict for one in near]]
        scores, truth = _scores(reader, images.test, outcome, ways)
    facts: dict[str, Value] = {
        "model": type(backbone).__name__,
        **_data_facts(images, truth, parts.origin),
        "linear": f"{linear} regression on standardised features",
        "k-NN": f"{k} nearest by cosine of {len(bank.values):,}, with weights exp(cosine / {temperature:g})",
    }
    tested = [_Tested(*each) for each in zip(every, *scores.tolist(), (one.penalty for one in fitted), strict=True)]
    return _report(f"{images.test.name}: probes of each layer", facts, tested, outcome)


def _check(linear: str, temperature: float) -> None:
    if linear not in ("ridge", "logistic"):
        raise ConfigError(f"linear is {linear!r}; it must be 'ridge' or 'logistic'")
    if temperature <= 0:
        raise ConfigError(f"temperature is {temperature:g}; it must be greater than 0")


def _data_facts(images: _Images, truth: Tensor, origin: str) -> dict[str, Value]:
    """After all images were read, since which of them are broken may be known only then."""
    return {
        "training images": len(images.fit.ids) + len(images.validation.ids),
        "of them, to choose the penalty": len(images.validation.ids),
        "test images": len(truth),
        "test images are": origin,
        **images.outcome.facts(truth),
    }


def _collect(
    reader: Reader, images: _Images, layers: Sequence[Layer], limit: int, moments: Sequence[tuple[Moments, Moments]]
) -> _Bank:
    """One pass over the training images: moments of those to fit and to validate on, features of at most `limit`."""
    parts, outcome = (images.fit, images.validation), images.outcome
    sizes = [int(part.ids.max()) + 1 for part in parts]
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0))
    chosen = torch.zeros(sum(sizes), dtype=torch.bool)
    chosen[order[: max(limit, 1)]] = True
    device = next(reader.model.parameters()).device
    stores = [torch.empty(int(chosen.sum()), layer.width, device=device) for layer in layers]
    truth, validation, filled = list[Tensor](), list[Tensor](), 0
    for part, (data, among) in enumerate(zip(parts, chosen.split(sizes), strict=True)):
        for vectors, values, ids in reader.read(data, outcome.field):
            kept, targets = among[ids], outcome.encode(values)
            into = slice(filled, filled + int(kept.sum()))
            for store, moment, features in zip(stores, moments, vectors, strict=True):
                store[into] = features[kept.to(device)]
                moment[part].update(features, targets)
            truth.append(values.cpu()[kept])
            validation.append(torch.full((len(truth[-1]),), part == 1))
            filled = into.stop
    return _Bank([store[:filled] for store in stores], torch.cat(truth), torch.cat(validation))


def _ridge(reader: Reader, images: _Images, moments: Sequence[tuple[Moments, Moments]]) -> list[_Fitted]:
    """Ridge regressions of each layer: the penalty by the validation images, the weights by all training images."""
    paths = [fit.solve() for fit, _ in moments]
    tried = [[partial(path.predict, penalty=penalty) for path in paths] for penalty in PENALTIES]
    scores, _ = _scores(reader, images.validation, images.outcome, tried)  # penalties L
    fitted = []
    for (whole, validation), column in zip(moments, scores.T, strict=True):
        whole.merge(validation)
        penalty = PENALTIES[_best(column)]
        fitted.append(_Fitted(partial(whole.solve().predict, penalty=penalty), penalty))
    return fitted


def _logistic(bank: _Bank, num_classes: int) -> list[_Fitted]:
    """Logistic regressions of each layer, chosen and fitted likewise, on the images of the bank."""
    falling, fitted = PENALTIES[5:0:-1], list[_Fitted]()  # with smaller penalties it would not converge
    if bank.validation.all() or not bank.validation.any():
        raise ConfigError("memory is too small for logistic regression: it holds too few features")
    for features in (one.cpu() for one in bank.features):
        fit, validation = features[~bank.validation], features[bank.validation]
        tried = Logistic.fit(fit, bank.values[~bank.validation], num_classes, falling)
        truth = bank.values[bank.validation]
        correct = torch.tensor([int((one.predict(validation).argmax(dim=1) == truth).sum()) for one in tried])
        penalty = falling[int(correct.argmax())]
        (last,) = Logistic.fit(features, bank.values, num_classes, [penalty])
        fitted.append(_Fitted(last.predict, penalty))
    return fitted


def _best(scores: Tensor) -> int:
    """The largest penalty with the best score: the simplest map that does as well as any."""
    return int((scores == scores.max()).nonzero()[-1])


def _scores(
    reader: Reader, images: ImageSet, outcome: Outcome, probes: Sequence[Sequence[Predict]]
) -> tuple[Tensor, Tensor]:
    """The score of each of several probes of each layer, ways L, and the targets of the images, M ...."""
    errors, targets = dict[tuple[int, int], Tensor](), list[Tensor]()
    for vectors, values, _ in reader.read(images, outcome.field):
        targets.append(values.cpu())
        for way, by_layer in enumerate(probes):
            for layer, (predict, features) in enumerate(zip(by_layer, vectors, strict=True)):
                error = outcome.error(predict(features), values)
                errors[way, layer] = errors.get((way, layer), torch.zeros(())) + error
    truth = torch.cat(targets)
    ways = [[outcome.score(errors[way, layer], truth) for layer in range(len(probes[0]))] for way in range(len(probes))]
    return torch.tensor(ways, dtype=torch.float64), truth


def _report(title: str, facts: dict[str, Value], tested: Sequence[_Tested], outcome: Outcome) -> Report:
    facts["best layer, linear"] = max(tested, key=lambda one: (one.linear, -one.layer.block)).layer.block
    facts["best layer, k-NN"] = max(tested, key=lambda one: (one.neighbours, -one.layer.block)).layer.block
    rows: list[dict[str, Value]] = [
        {
            "layer": one.layer.block,
            "grid": one.layer.grid,
            "width": one.layer.width,
            "reads": one.layer.reads,
            "linear": one.linear,
            "k-NN": one.neighbours,
            "penalty": one.penalty,
        }
        for one in tested
    ]
    columns: dict[str, Unit] = {name: outcome.unit if name in ("linear", "k-NN") else "" for name in rows[0]}
    curves = [
        Curve("linear", sorted((one.layer.block, one.linear) for one in tested)),
        Curve("k-NN", sorted((one.layer.block, one.neighbours) for one in tested)),
    ]
    show = charts.percent if outcome.unit == "share" else charts.plain
    chart = charts.curves(outcome.metric, curves, x="layer", key=True, show=show)
    sections = (
        Facts("Probe", facts, outcome.units),
        Table("By layer", columns, rows),
        Picture("By depth", chart, outcome.text),
    )
    return Report(title, sections)
