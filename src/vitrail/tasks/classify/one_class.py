"""Classification: which class an image is of. Several labels an image are in `multi_label`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets import ClassTarget, Schema
from vitrail.models.backbone import Backbone
from vitrail.tasks.answer import Answer
from vitrail.tasks.classify.class_answer import ClassAnswer, check_finite
from vitrail.tasks.classify.class_loss import one_class_loss
from vitrail.tasks.classify.class_metrics import ClassMeter
from vitrail.tasks.classify.classifier import Classifier, ClassifierConfig
from vitrail.tasks.classify.multi_label import MultiLabel
from vitrail.tasks.classify.temperature import LEAST, Temperature, fit_temperature
from vitrail.tasks.task import Arrays, Outputs, Task


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(ClassifierConfig, kind="classify"):
    """One class an image, or several labels, whichever the data have."""

    student: ClassVar[str | None] = "distill"

    def build(self, backbone: Backbone | None, schema: Schema) -> Task:
        """The classifier of the schema's classes, or of its labels."""
        (target,) = self.learns(schema).values()
        return (Classify if isinstance(target, ClassTarget) else MultiLabel)(self, schema, backbone)


class Classify(Classifier):
    """A backbone whose logits B K are read as one class an image."""

    best_metrics = ("accuracy", "balanced_accuracy", "macro_f1", "nll")
    tie_metric = "nll"
    config: ClassifyConfig

    def __init__(self, config: ClassifyConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        self.target = config.learns(schema)[self.field]
        self.temperature = Temperature()
        self.set_balance(torch.ones(len(self.classes)))

    def fit(self, targets: Targets) -> None:
        """Takes over how many images each class has."""
        self.set_balance(torch.tensor(self.target.counts(targets[self.field])))

    def losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of logits B K, and the accuracy in a batch."""
        logits = logits.float()
        smoothing = self.config.label_smoothing
        if self.plain_loss:
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        else:
            shares = self.target.shares(labels) * (1 - smoothing) + smoothing / len(self.classes)
            loss = one_class_loss(logits, shares, self.weights, self.shift, self.gamma)
        truth = labels.argmax(dim=1) if self.target.soft(labels) else labels
        return {"loss": loss, "accuracy": (logits.detach().argmax(dim=1) == truth).float().mean()}

    def metrics(self) -> ClassMeter:
        """A fresh meter for one evaluation."""
        return ClassMeter(len(self.classes), field=self.field, temperature=self.temperature.temperature)

    def calibrate(self, outputs: Outputs, targets: Targets) -> None:
        """Fits the temperature, where there are enough images."""
        if len(outputs["logits"]) >= LEAST:
            self.temperature = fit_temperature(outputs["logits"].float().cpu(), targets[self.field].cpu())

    def clear_calibration(self) -> None:
        """A temperature of 1."""
        self.temperature = Temperature()

    def state(self) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": self.temperature.to_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.temperature = Temperature.from_dict(state.get("temperature", {}))

    def calibration(self) -> str:
        """What the confidence was fitted to."""
        return str(self.temperature)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated: B K -> B K."""
        return (logits.float() / self.temperature.temperature).softmax(dim=1)

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The `top` likeliest classes."""
        probabilities = self.probabilities(outputs["logits"])
        check_finite(probabilities, top)
        chosen = F.one_hot(outputs["logits"].argmax(dim=1), len(self.classes)).bool()
        rows = zip(probabilities.tolist(), chosen.tolist(), strict=True)
        return [ClassAnswer.of(self.classes, *row, top=top) for row in rows]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The confidence of wrong answers."""
        confidence, said = self.probabilities(outputs["logits"]).max(dim=1)
        return confidence.where(said != targets[self.field], 0.0)

    def graph(self, outputs: Outputs) -> dict[str, Tensor]:
        """Logits and calibrated probabilities."""
        return {**outputs, "probabilities": self.probabilities(outputs["logits"])}

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """The same likeliest class."""
        return expected["logits"].argmax(axis=1) == found["logits"].argmax(axis=1)

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Probabilities."""
        return self.probabilities(logits)
