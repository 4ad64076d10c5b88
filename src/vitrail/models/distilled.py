"""Backbones that learn from a teacher by a head of its own."""

from torch import Tensor, nn

from vitrail.models.backbone import Backbone, Features


class Distilled(Backbone):
    """Two heads: training gives each its own loss, `classify` answers with their mean (arXiv:2012.12877)."""

    distillation_head: nn.Module | None  # None: a model that may have one, but was built without

    def heads(self, features: Features) -> tuple[Tensor, Tensor]:
        """Features -> the logits B K of the head that learns from labels and of the one that learns from a teacher."""
        pooled = self.pooled(features)
        by_label: Tensor = self.head(pooled)
        return by_label, by_label if self.distillation_head is None else self.distillation_head(pooled)

    def classify(self, features: Features) -> Tensor:
        """Features -> logits B K: the mean of both heads."""
        by_label, by_teacher = self.heads(features)
        return (by_label + by_teacher) / 2

    def reset_head(self, num_classes: int) -> None:
        """Replaces both heads by fresh ones for another number of classes; 0 takes them away."""
        super().reset_head(num_classes)
        if self.distillation_head is not None:
            self.distillation_head = self._fresh("distillation_head")
