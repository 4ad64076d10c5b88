"""Classification: which class an image is of. Several labels an image are in `multi_label`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets import ClassTarget, Schema
from vitrail.models.backbone import Backbone
from vitrail.report.metric import Interval
from vitrail.tasks.answer import Answer
from vitrail.tasks.classify import classify_report
from vitrail.tasks.classify.class_answer import ClassAnswer, check_finite
from vitrail.tasks.classify.class_loss import one_class_loss
from vitrail.tasks.classify.class_metrics import ClassMeter
from vitrail.tasks.classify.classifier import Classifier, ClassifierConfig
from vitrail.tasks.classify.goal import Decision
from vitrail.tasks.classify.multi_label import MultiLabel
from vitrail.tasks.classify.temperature import LEAST, Temperature, fit_temperature
from vitrail.tasks.task import Arrays, HeldOut, Outputs, Task


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
        self.temperature, self.decision = Temperature(), Decision()
        self.member_temperatures: tuple[float, ...] = (1.0,) * config.members if config.members > 1 else ()
        self.set_balance(torch.ones(len(self.classes)))

    def counted(self, values: Tensor) -> Tensor:
        """K: images of each class."""
        return torch.tensor(self.target.counts(values))

    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """The logarithm of the mean of the members' calibrated probabilities: several B K -> B K."""
        return mean_log_probability(logits, self.member_temperatures)

    def join(self, folds: Sequence[HeldOut]) -> None:
        """Takes over the models and their temperatures; the decision of a goal fits all folds together."""
        self.member_temperatures = tuple(
            fold.task.temperature.temperature if isinstance(fold.task, Classify) else 1.0 for fold in folds
        )
        super().join(folds)

    def as_joined(self, logits: Tensor, member: int) -> Tensor:
        """Logarithms of calibrated probabilities."""
        return mean_log_probability([logits], [self.member_temperatures[member]])

    def pooled_intervals(self, folds: Sequence[HeldOut]) -> dict[str, Interval]:
        """Of accuracy and balanced accuracy, by resampling images, or groups where images are in groups."""
        truth = [fold.targets[self.field] for fold in folds]
        said = [fold.task.likeliest(fold.outputs) for fold in folds]
        names = [name for fold in folds for name in fold.groups]
        return classify_report.grouped_intervals(torch.cat(truth), torch.cat(said), names, len(self.classes))

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """Logits whose calibrated probabilities are the mean of those of the outputs."""
        heat = self.temperature.temperature
        return {"logits": heat * mean_log_probability([one["logits"] for one in outputs], [heat] * len(outputs))}

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
        return ClassMeter(
            len(self.classes), field=self.field, temperature=self.temperature.temperature,
            offsets=self.decision.offsets, goal=self.config.goal, classes=self.classes,
        )  # fmt: skip

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over the decision that a validation found best for the goal."""
        if "decision" in results:
            self.decision = results["decision"]

    def choose(self, logits: Tensor) -> Tensor:
        """What is said of logits B K: B."""
        if not self.decision.offsets:
            return logits.argmax(dim=1)
        return (logits.float() + torch.tensor(self.decision.offsets, device=logits.device)).argmax(dim=1)

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The answer."""
        return self.choose(outputs["logits"])

    def calibrate(self, outputs: Outputs, targets: Targets) -> None:
        """Fits the temperature, where there are enough images."""
        if len(outputs["logits"]) >= LEAST:
            self.temperature = fit_temperature(outputs["logits"].float().cpu(), targets[self.field].cpu())

    def clear_calibration(self) -> None:
        """A temperature of 1."""
        self.temperature = Temperature()

    def state(self) -> dict[str, Any]:
        """The temperature; with a goal, the decision; of an ensemble, the temperatures of its members."""
        found: dict[str, Any] = {"temperature": self.temperature.to_dict()}
        found |= {"decision": self.decision.to_dict()} if self.config.goal is not None else {}
        return found | ({"members": list(self.member_temperatures)} if self.member_temperatures else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.temperature = Temperature.from_dict(state.get("temperature", {}))
        self.decision = Decision.from_dict(state.get("decision", {}), len(self.classes))
        if self.member_temperatures:
            self.member_temperatures = member_temperatures(state, self.config.members)

    def calibration(self) -> str:
        """What the confidence was fitted to."""
        return "; ".join(filter(None, (str(self.temperature), self.decision.about)))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated: B K -> B K."""
        return (logits.float() / self.temperature.temperature).softmax(dim=1)

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The `top` likeliest classes."""
        probabilities = self.probabilities(outputs["logits"])
        check_finite(probabilities, top)
        chosen = F.one_hot(self.choose(outputs["logits"]), len(self.classes)).bool()
        rows = zip(probabilities.tolist(), chosen.tolist(), strict=True)
        return [ClassAnswer.of(self.classes, *row, top=top) for row in rows]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The confidence of wrong answers."""
        said = self.choose(outputs["logits"])
        confidence = self.probabilities(outputs["logits"]).gather(1, said[:, None])[:, 0]
        return confidence.where(said != targets[self.field], 0.0)

    def graph(self, outputs: Outputs) -> dict[str, Tensor]:
        """Logits and calibrated probabilities; with a goal, the class that is decided for too, as 0 and 1."""
        found = {**outputs, "probabilities": self.probabilities(outputs["logits"])}
        if self.config.goal is None:
            return found
        said = self.choose(outputs["logits"])
        return found | {"chosen": (said[:, None] == torch.arange(len(self.classes), device=said.device)).float()}

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """The same class."""
        first, second = (self.choose(torch.from_numpy(np.asarray(one["logits"]))) for one in (expected, found))
        return (first == second).numpy()

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Probabilities."""
        return self.probabilities(logits)


def mean_log_probability(logits: Sequence[Tensor], temperatures: Sequence[float]) -> Tensor:
    """The logarithm of the mean of the probabilities of several logits, each at its temperature: V of B K -> B K."""
    each = [F.log_softmax(one.float() / heat, dim=1) for one, heat in zip(logits, temperatures, strict=True)]
    return torch.stack(each).logsumexp(dim=0) - math.log(len(each))


def member_temperatures(state: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """Those of the members of an ensemble, from its state; ValueError where they are not all there."""
    found = tuple(float(heat) for heat in state.get("members", (1.0,) * count))
    if len(found) != count or not all(0 < heat < math.inf for heat in found):
        raise ValueError(f"an ensemble of {count} members needs as many temperatures; found {found}")
    return found
