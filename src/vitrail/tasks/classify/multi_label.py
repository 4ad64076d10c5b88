"""Classification with several labels an image: K independent decisions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets import Schema
from vitrail.models.backbone import Backbone
from vitrail.tasks.answer import Answer
from vitrail.tasks.classify.class_answer import ClassAnswer, check_finite
from vitrail.tasks.classify.class_loss import labels_loss
from vitrail.tasks.classify.class_metrics import LabelMeter
from vitrail.tasks.classify.classifier import Classifier, ClassifierConfig
from vitrail.tasks.task import Arrays, Outputs


class MultiLabel(Classifier):
    """A backbone whose logits B K are read as K yes-or-no decisions.

    `thresholds` K are the probabilities from which on a label is given; validation finds them, 0.5 until then.
    """

    best_metrics = ("ap", "auc", "best_f1")
    thresholds: Tensor

    def __init__(self, config: ClassifierConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        self.register_buffer("thresholds", torch.full((len(self.classes),), 0.5), persistent=False)
        self.set_balance(torch.ones(len(self.classes), 2))

    def losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of logits B K."""
        smoothing = self.config.label_smoothing
        soft = labels * (1 - smoothing) + smoothing / 2
        if self.plain_loss:
            return {"loss": F.binary_cross_entropy_with_logits(logits.float(), soft)}
        return {"loss": labels_loss(logits.float(), soft, self.weights, self.shift, self.gamma)}

    def counted(self, values: Tensor) -> Tensor:
        """K 2: images without and with each label."""
        marks = values.double()
        return torch.stack([(1 - marks).sum(dim=0), marks.sum(dim=0)], dim=1)

    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """By the mean of the probabilities of each label: several B K -> B K."""
        stacked = torch.stack([one.float() for one in logits])  # V B K
        return F.logsigmoid(stacked).logsumexp(dim=0) - F.logsigmoid(-stacked).logsumexp(dim=0)

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """Logits whose probabilities are the mean of those of the outputs."""
        return {"logits": self.joined([one["logits"] for one in outputs])}

    def metrics(self) -> LabelMeter:
        """A fresh meter for one evaluation."""
        return LabelMeter(self.thresholds.tolist(), field=self.field, goal=self.config.goal, classes=self.classes)

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over the thresholds that a validation found best."""
        self.thresholds.copy_(results["thresholds"])

    def state(self) -> dict[str, Any]:
        """The thresholds."""
        return {"thresholds": self.thresholds.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        if "thresholds" in state:
            self.thresholds.copy_(torch.tensor(state["thresholds"]))

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The `top` likeliest labels, and all others that are given."""
        probabilities = outputs["logits"].float().sigmoid()
        check_finite(probabilities, top)
        chosen = probabilities >= self.thresholds.to(probabilities.device)
        rows = zip(probabilities.tolist(), chosen.tolist(), strict=True)
        return [ClassAnswer.of(self.classes, *row, top=top, exclusive=False) for row in rows]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The confidence of the worst label of an image that is wrong."""
        probabilities = outputs["logits"].float().sigmoid()
        said = probabilities >= self.thresholds.to(probabilities.device)
        sure = probabilities.where(said, 1 - probabilities)
        return sure.where(said != (targets[self.field] > 0.5), 0.0).amax(dim=1)

    def calibration(self) -> str:
        """What thresholds were chosen for."""
        return "" if self.config.goal is None else f"thresholds are those of {self.config.goal.words(self.classes)}"

    def graph(self, outputs: Outputs) -> dict[str, Tensor]:
        """Logits and probabilities; with a goal, the labels that are given too, 0 or 1."""
        probabilities = outputs["logits"].float().sigmoid()
        found = {**outputs, "probabilities": probabilities}
        return found if self.config.goal is None else found | {"chosen": (probabilities >= self.thresholds).float()}

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """The same labels."""
        least = np.log(np.clip(self.thresholds.cpu().numpy(), 1e-9, 1 - 1e-9))
        cuts = least - np.log1p(-np.exp(least))
        return ((expected["logits"] >= cuts) == (found["logits"] >= cuts)).all(axis=1)

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Probabilities."""
        return logits.float().sigmoid()
