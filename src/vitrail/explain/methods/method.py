"""The contract of every saliency method."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from vitrail.config import Choice
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone

Tried = dict[str, str | None]  # layers -> why they cannot be read


class Method(Choice):
    """How much each pixel matters for an output of a model."""

    targeted: ClassVar[bool] = True  # whether maps differ from output to output

    @abstractmethod
    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """Images B C H W -> maps B H W; the model is in evaluation mode, and gradients are on."""

    def refusal(self, model: Backbone, tried: Tried | None = None) -> str | None:
        """Why the method cannot be used for a model, as one sentence; None if it can.

        `tried` remembers the answers for layers that several methods read.
        """
        if self.targeted and not model.config.num_classes:
            return f"{self.kind} explains an output, but the model has no head (num_classes is 0)"
        return None
