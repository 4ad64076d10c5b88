"""Classification: which class an image is of, or which labels it has."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.tasks.metrics import ClassMeter, LabelMeter
from vitrail.tasks.task import Meter, Task


class Classify(Task):
    """A backbone whose logits B K are read as one class an image, or, with `multi_label`, as K answers yes or no.

    `thresholds` K say from which probability on a label is given; a validation finds them (`adopt`), half until then.
    """

    thresholds: Tensor  # K, where there are several labels an image

    def __init__(
        self,
        backbone: Backbone,
        *,
        classes: Sequence[str],
        multi_label: bool = False,
        label_smoothing: float = 0.0,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if backbone.config.num_classes != len(classes):
            raise ConfigError(
                f"the model has a head for {backbone.config.num_classes} classes, the data have {len(classes)}; give "
                f"it another with model.reset_head({len(classes)})"
            )
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing is {label_smoothing}; it must be 0 or more, and less than 1")
        if thresholds is not None and (not multi_label or len(thresholds) != len(classes)):
            raise ConfigError(f"thresholds are {len(thresholds)}; they go with several labels an image, one for each")
        self.backbone, self.classes = backbone, tuple(classes)
        self.multi_label, self.label_smoothing = multi_label, label_smoothing
        self.best_metric = "ap" if multi_label else "accuracy"
        backbone.labels = self.classes
        if multi_label:
            halves = torch.full((len(classes),), 0.5)
            self.register_buffer("thresholds", halves if thresholds is None else torch.tensor(thresholds).float())

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross entropy with labels B or soft labels B K, or the mean binary one over B K; float32."""
        return self.losses(self.outputs(batch.images), batch.labels)

    def losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of logits B K, and the accuracy in a batch where there is one label an image."""
        logits = logits.float()
        if not self.multi_label:
            loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
            truth = labels.argmax(dim=1) if labels.ndim == 2 else labels
            return {"loss": loss, "accuracy": (logits.detach().argmax(dim=1) == truth).float().mean()}
        soft = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        return {"loss": F.binary_cross_entropy_with_logits(logits, soft)}

    def outputs(self, images: Tensor) -> Tensor:
        """Logits B K."""
        return self.backbone(images)

    def metrics(self) -> Meter:
        """A fresh meter for one evaluation."""
        return LabelMeter(self.thresholds.tolist()) if self.multi_label else ClassMeter(len(self.classes))

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over the thresholds that a validation found best."""
        if self.multi_label:
            self.thresholds.copy_(results["thresholds"])

    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Outputs, probabilities and `chosen`, B K each: the likeliest class, or labels whose threshold is reached."""
        logits = self.outputs(images).float()
        if self.multi_label:
            probabilities = logits.sigmoid()
            chosen = probabilities >= self.thresholds
        else:
            probabilities = logits.softmax(dim=1)
            chosen = F.one_hot(logits.argmax(dim=1), len(self.classes)).bool()
        return {"outputs": logits, "probabilities": probabilities, "chosen": chosen}
