"""Backbones with a separate head for distillation."""

from torch import Tensor, nn

from vitrail.models.backbone import Backbone, Features


class Distilled(Backbone):
    """Two heads: in training each has its own loss, `classify` returns their mean (arXiv:2012.12877)."""

    distillation_head: nn.Module | None  # None: the model was built without it

    def heads(self, features: Features) -> tuple[Tensor, Tensor]:
        """Features -> the logits B K of the head for labels and of the head for distillation."""
        pooled = self.pooled(features)
        by_label: Tensor = self.head(pooled)
        return by_label, by_label if self.distillation_head is None else self.distillation_head(pooled)

    def classify(self, features: Features) -> Tensor:
        """Features -> logits B K: the mean of both heads."""
        by_label, by_teacher = self.heads(features)
        return (by_label + by_teacher) / 2

    def reset_head(self, num_classes: int) -> None:
        """Replaces both heads by new ones for another number of classes; 0 removes them."""
        super().reset_head(num_classes)
        if self.distillation_head is not None:
            self.distillation_head = self._fresh("distillation_head")
