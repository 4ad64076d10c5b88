"""Regression: one or several numbers an image, with prediction intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Positive, Rate
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import NumbersTarget, Schema
from vitrail.data.targets.target import Change
from vitrail.errors import ConfigError, DataError
from vitrail.models.backbone import Backbone
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Bar, Examples
from vitrail.tasks.regress import regress_report
from vitrail.tasks.task import (
    CLASSES,
    SQUARES,
    Agreement,
    Arrays,
    Breakdown,
    Outputs,
    Task,
    TaskConfig,
    distance,
    require_finite,
)

_CLOSE = 0.1  # of the standard deviation: numbers that differ by less are the same answer


@dataclass(frozen=True, kw_only=True)
class RegressConfig(TaskConfig, kind="regress"):
    """Numbers, standardised by their mean and deviation over the training images.

    `coverage` is the share of new images whose number should lie in the predicted interval. `safe` names augmentations
    that do not change the numbers; others are off.
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("numbers",)
    loss: Literal["huber", "mse"] = "huber"
    delta: Positive = 1.0  # deviations, where Huber's loss goes from square to linear
    coverage: Rate = 0.9
    safe: tuple[Change, ...] = ()

    def build(self, backbone: Backbone | None, schema: Schema) -> "Regress":
        """The task of the schema's numbers."""
        return Regress(self, schema, backbone)

    def num_outputs(self, schema: Schema) -> int:
        """One for each number."""
        return len(next(iter(self.learns(schema).values())).names)

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """Numbers with what was declared safe for them."""
        declared = {
            name: replace(target, safe=self.safe) if isinstance(target, NumbersTarget) else target
            for name, target in schema.items()
        }
        schema, augment, mix, notes = super().adapt(declared, augment, mix)
        if "crop" not in self.safe and (mix.cutmix or mix.patch_mixup):
            mix = replace(mix, cutmix=0.0, patch_mixup=0.0)
            notes.append("CutMix is off: parts of images may not have their share of a number (task.safe=crop)")
        return schema, augment, mix, notes


class Number(NamedTuple):
    """A predicted number, and an interval that holds the true number in the share `coverage` of images."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class NumbersAnswer(Answer):
    """Numbers by name, each with its interval where one is known; `span` is the range of each in training."""

    kind: ClassVar[str] = "numbers"
    numbers: tuple[Number, ...]
    span: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers."""
        return {"numbers": [number._asdict() for number in self.numbers]}

    def text(self) -> str:
        """Names, numbers and intervals."""
        return ", ".join(f"{one.name} {_written(one)}" for one in self.numbers)

    def row(self) -> dict[str, Any]:
        """A column for each number and the ends of its interval."""
        cells: dict[str, Any] = {}
        for one in self.numbers:
            cells |= {one.name: one.value, f"{one.name}_low": one.low, f"{one.name}_high": one.high}
        return cells

    def bars(self) -> list[Bar]:
        """A bar for each number, as long as the number is far up in the range of the training images."""
        return [_bar(one, *span) for one, span in zip(self.numbers, self.span, strict=True)]


def _bar(number: Number, least: float, most: float) -> Bar:
    def share(value: float) -> float:
        return min(max((value - least) / max(most - least, 1e-12), 0.0), 1.0)

    low, high = (None if end is None else share(end) for end in (number.low, number.high))
    return Bar(number.name, _written(number), share(number.value), low=low, high=high)


def _written(number: Number) -> str:
    interval = "" if number.low is None else f" ({number.low:.4g} to {number.high:.4g})"
    return f"{number.value:.4g}{interval}"


class Regress(Task):
    """A backbone whose outputs B K are numbers in deviations from their mean."""

    best_metric = "r2"
    answered_by: ClassVar[Mapping[str, int]] = {"numbers": 2}
    about_metrics = regress_report.METRICS
    config: RegressConfig
    mean: Tensor
    std: Tensor

    def __init__(self, config: RegressConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        (self.field,) = config.learns(schema)
        self.likelihood = SQUARES if config.loss == "mse" else CLASSES  # Huber's loss is half of the square
        target = schema[self.field]
        assert isinstance(target, NumbersTarget)  # noqa: S101  (`learns` says so)
        self.names = self.output_names = target.names
        self.columns = tuple(f"{name}{end}" for name in self.names for end in ("", "_low", "_high"))
        self.register_buffer("mean", torch.zeros(len(self.names)), persistent=False)
        self.register_buffer("std", torch.ones(len(self.names)), persistent=False)
        self.span = [(0.0, 1.0)] * len(self.names)
        self.margin: list[float] | None = None  # half of the interval of each number
        self.calibrated_on = 0
        if backbone is not None and backbone.config.num_classes != len(self.names):
            raise ConfigError(
                f"the model has a head for {backbone.config.num_classes} outputs, the data have {len(self.names)} "
                f"numbers; replace it with model.reset_head({len(self.names)})"
            )

    def fit(self, targets: Targets) -> None:
        """Takes over mean, deviation and range of the training images' numbers."""
        values = targets[self.field].double()
        self.mean.copy_(values.mean(dim=0))
        self.std.copy_(values.std(dim=0, correction=0).clamp(min=1e-12))
        self.span = list(zip(values.amin(dim=0).tolist(), values.amax(dim=0).tolist(), strict=True))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Huber's or the squared error in deviations, and the mean absolute error in the same."""
        predicted = self.backbone(batch.images).float()  # B K
        truth = (batch.targets[self.field] - self.mean) / self.std
        if self.config.loss == "mse":
            loss = F.mse_loss(predicted, truth)
        else:
            loss = F.huber_loss(predicted, truth, delta=self.config.delta)
        return {"loss": loss, "mae_std": (predicted.detach() - truth).abs().mean()}

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Numbers in their own units: B K."""
        return {"numbers": self.backbone(images).float() * self.std + self.mean}

    def metrics(self) -> "NumbersMeter":
        """A fresh meter for one evaluation."""
        return NumbersMeter(self.field, self.names, self.margin)

    def calibrate(self, outputs: Outputs, targets: Targets) -> None:
        """Intervals by split conformal prediction: as wide as the errors on validation images ask for.

        See Lei et al. 2018 (arXiv:1604.04173). With too few images for the coverage there is no interval.
        """
        errors = (outputs["numbers"] - targets[self.field]).abs().double().cpu()  # M K
        rank = math.ceil((len(errors) + 1) * self.config.coverage)
        self.calibrated_on = len(errors)
        self.margin = None if rank > len(errors) else errors.sort(dim=0).values[rank - 1].tolist()

    def clear_calibration(self) -> None:
        """No intervals."""
        self.margin, self.calibrated_on = None, 0

    def state(self) -> dict[str, Any]:
        """Mean, deviation, range and interval of each number."""
        return {
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "span": [list(ends) for ends in self.span],
            "margin": self.margin,
            "calibrated_on": self.calibrated_on,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        if "mean" in state:
            self.mean.copy_(torch.tensor(state["mean"]))
            self.std.copy_(torch.tensor(state["std"]))
            self.span = [(low, high) for low, high in state["span"]]
            self.margin, self.calibrated_on = state["margin"], state["calibrated_on"]

    def calibration(self) -> str:
        """What the intervals were fitted to."""
        if self.margin is None:
            return "no prediction intervals: too few validation images"
        return f"{100 * self.config.coverage:g} % prediction intervals from {self.calibrated_on:,} validation images"

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The numbers and their intervals; `top` has no meaning here."""
        values = require_finite(outputs["numbers"].double())
        margins: Sequence[float | None] = self.margin or [None] * len(self.names)
        return [
            NumbersAnswer(
                tuple(
                    Number(name, value, *((None, None) if margin is None else (value - margin, value + margin)))
                    for name, value, margin in zip(self.names, row, margins, strict=True)
                ),
                tuple(self.span),
            )
            for row in values.tolist()
        ]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The largest error of an image, in deviations."""
        return ((outputs["numbers"] - targets[self.field]).abs() / self.std).amax(dim=1)

    def answer_schema(self) -> dict[str, Any]:
        """A list of numbers with their intervals."""
        number = {"type": ["number", "null"]}
        properties = {"name": {"type": "string"}, "value": {"type": "number"}, "low": number, "high": number}
        item = {"type": "object", "required": ["name", "value"], "properties": properties}
        return {"type": "object", "required": ["numbers"], "properties": {"numbers": {"type": "array", "items": item}}}

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """Errors by number, scatter plots, residuals, worst errors."""
        truth, predicted = results["truth"], results["predicted"]
        return regress_report.sections(truth, predicted, self.names, half_widths=self.margin, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """The mean error."""
        return regress_report.lead(results)

    def intervals(self, results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Bootstrapped over images, where there is one number; the report has those of each of several."""
        if len(self.names) > 1:
            return {}
        found = regress_report.scores(results["truth"][:, 0], results["predicted"][:, 0])
        return {name: score.interval for name, score in found.items()}

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """The mean absolute error of each number."""
        return {"mae_of": Breakdown.of(regress_report.METRICS["mae"], self.names, results["mae_of"])}

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """Compared in deviations, beside a constant 1: two numbers near 0 may differ in sign and be close."""
        mean, std = (values.double().cpu().numpy() for values in (self.mean, self.std))
        first, second = (
            np.pad((one["numbers"] - mean) / std, ((0, 0), (1, 0)), constant_values=1.0) for one in (expected, found)
        )  # B 1+K
        return Agreement(*distance(first, second), float(self.same(expected, found).mean()))

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """Numbers that differ by less than a tenth of a deviation."""
        far = np.abs(expected["numbers"] - found["numbers"]) / self.std.cpu().numpy()
        return far.max(axis=1) <= _CLOSE


class NumbersMeter:
    """Errors of numbers: MAE, RMSE and R2 of each, and in the mean."""

    def __init__(self, field: str, names: Sequence[str], margin: Sequence[float] | None) -> None:
        self.field, self.names, self.margin = field, tuple(names), margin
        self._predicted: list[Tensor] = []
        self._truth: list[Tensor] = []

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in numbers B K, and the true ones."""
        self._predicted.append(outputs["numbers"].detach().double().cpu())
        self._truth.append(targets[self.field].double().cpu())

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        self._predicted += other._predicted
        self._truth += other._truth

    def compute(self) -> Mapping[str, Any]:
        """Numbers: r2, mae, rmse (means over the numbers), coverage where intervals are known, images.

        Tensors: mae_of, rmse_of, r2_of and coverage_of K; predicted and truth N K.
        """
        if not sum(map(len, self._truth)):
            raise DataError("no images were evaluated; the data set is empty")
        predicted, truth = torch.cat(self._predicted), torch.cat(self._truth)
        error = predicted - truth
        square = error.square().mean(dim=0)
        variance = truth.var(dim=0, correction=0).clamp(min=1e-12)
        r2, mae, rmse = 1 - square / variance, error.abs().mean(dim=0), square.sqrt()
        results: dict[str, Any] = {"r2": float(r2.mean()), "mae": float(mae.mean()), "rmse": float(rmse.mean())}
        if self.margin is not None:
            covered = (error.abs() <= torch.tensor(self.margin, dtype=torch.float64)).double().mean(dim=0)
            results |= {"coverage": float(covered.mean()), "coverage_of": covered}
        return results | {
            "images": len(truth), "mae_of": mae, "rmse_of": rmse, "r2_of": r2, "predicted": predicted, "truth": truth,
        }  # fmt: skip
