"""What a probe predicts, and its score: classes with accuracy, or numbers with R2."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from vitrail.data.targets import ClassTarget, Schema, Target
from vitrail.errors import DataError, Unsupported, listed
from vitrail.report import Unit, Value

_INTERVAL = "95 % interval, at most \N{PLUS-MINUS SIGN}"


class Outcome(ABC):
    """The target of a probe: how predictions B K are made of it and scored."""

    field: str  # of the schema
    num_outputs: int
    metric: ClassVar[str]
    unit: ClassVar[Unit]
    text: ClassVar[str]  # what the score means

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Targets as ridge regression predicts them: B K, float64."""

    @abstractmethod
    def error(self, predicted: Tensor, values: Tensor) -> Tensor:
        """The error of a batch of predictions B K, which is added up over batches."""

    @abstractmethod
    def score(self, error: Tensor, values: Tensor) -> float:
        """The score of the error over all targets, higher is better, 1 at most."""

    @abstractmethod
    def facts(self, values: Tensor) -> dict[str, Value]:
        """Facts about the targets of the test images."""

    @property
    def units(self) -> dict[str, Unit]:
        """Units of the facts."""
        return {}


@dataclass(frozen=True)
class ClassOutcome(Outcome):
    """One class for each image."""

    field: str
    classes: tuple[str, ...]
    metric: ClassVar[str] = "accuracy"
    unit: ClassVar[Unit] = "share"
    text: ClassVar[str] = "The share of test images whose class is predicted correctly from the features of each layer."

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """One for each class."""
        return len(self.classes)

    def encode(self, values: Tensor) -> Tensor:
        """One-hot: B -> B K."""
        return F.one_hot(values.cpu(), len(self.classes)).double()

    def error(self, predicted: Tensor, values: Tensor) -> Tensor:
        """The number of wrong predictions: 1."""
        return (predicted.argmax(dim=1).cpu() != values.cpu()).sum().double()[None]

    def score(self, error: Tensor, values: Tensor) -> float:
        """Accuracy."""
        return (len(values) - float(error)) / len(values)

    def facts(self, values: Tensor) -> dict[str, Value]:
        """How many classes, and the accuracy of always predicting the most common one."""
        share = int(values.bincount().max()) / len(values)
        return {
            "classes": len(self.classes),
            "the most common class alone": share,
            _INTERVAL: 0.98 / sqrt(len(values)),
        }

    @property
    def units(self) -> dict[str, Unit]:
        """Shares."""
        return {"the most common class alone": "share", _INTERVAL: "share"}


@dataclass(frozen=True)
class NumbersOutcome(Outcome):
    """One or several numbers for each image."""

    field: str
    names: tuple[str, ...]
    metric: ClassVar[str] = "R2"
    unit: ClassVar[Unit] = ""
    text: ClassVar[str] = (
        "R2 on test images, mean over the numbers, predicted from the features of each layer: 1 is perfect, 0 is no "
        "better than the mean."
    )

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """One for each number."""
        return len(self.names)

    def encode(self, values: Tensor) -> Tensor:
        """The numbers: B K."""
        return values.cpu().double()

    def error(self, predicted: Tensor, values: Tensor) -> Tensor:
        """Squared errors: K."""
        return (predicted.cpu().double() - values.cpu().double()).square().sum(dim=0)

    def score(self, error: Tensor, values: Tensor) -> float:
        """R2, mean over the numbers."""
        exact = values.cpu().double()
        total = (exact - exact.mean(dim=0)).square().sum(dim=0).clamp(min=1e-12)
        return float((1 - error / total).mean())

    def facts(self, values: Tensor) -> dict[str, Value]:
        """Which numbers, and their standard deviation, the error of always predicting the mean."""
        deviations = values.double().std(dim=0, correction=0).tolist()
        spread = {f"deviation of {name}": one for name, one in zip(self.names, deviations, strict=True)}
        return {"numbers": listed(self.names, 5), **(spread if len(spread) <= 5 else {})}


def outcome_of(name: str, schema: Schema) -> Outcome:
    """What a probe predicts on data of a schema; an error unless that is one field of classes or numbers."""
    fields = [(field, target) for field, target in schema.items() if _probed(target)]
    if len(fields) != 1:
        found = ", ".join(target.describe() for target in schema.values()) or "no labels"
        raise Unsupported(f"a probe needs one class for each image, or numbers; {name} has {found}")
    field, target = fields[0]
    if not isinstance(target, ClassTarget):
        return NumbersOutcome(field, target.number_names)
    if len(target.classes) < 2:
        raise DataError(f"{name} has one class only, {target.classes[0]!r}; a probe needs two or more")
    return ClassOutcome(field, target.classes)


def _probed(target: Target) -> bool:
    return isinstance(target, ClassTarget) or bool(target.number_names)
