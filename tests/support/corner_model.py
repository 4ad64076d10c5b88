"""A model whose answer is known: class 0 is the brightness of the upper left quarter, class 1 is none."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone, BackboneConfig, Features


@dataclass(frozen=True, kw_only=True)
class CornerConfig(BackboneConfig):
    """Images of one size; every pixel is a patch."""

    image_size: tuple[int, int] = (4, 4)
    channels: int = 1
    num_classes: int = 2

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of the pixels."""
        return (image_size,)


class Corner(Backbone):
    """Pixels times `weight`, H W, which is 1 in the upper left quarter, and 0 elsewhere: B 1 H W -> B 2."""

    def __init__(self, size: int = 4) -> None:
        super().__init__(CornerConfig(image_size=(size, size)))
        weight = torch.zeros(size, size)
        weight[: size // 2, : size // 2] = 4 / size**2
        self.weight = nn.Parameter(weight)
        self.head = nn.Linear(1, 2, bias=False)
        self.head.weight.data = torch.tensor([[2.0], [0.0]])
        self.blocks = nn.ModuleList()

    def features(self, images: Tensor) -> Features:
        """One patch a pixel, of width 1."""
        self.check(images)
        return Features.from_tokens((images[:, 0] * self.weight).flatten(1)[..., None], self.config.image_size)

    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """There are no blocks."""
        return []

    def classify(self, features: Features) -> Tensor:
        """The sum, and 0."""
        logits: Tensor = self.head(features.patches.sum(dim=1))
        return logits

    def reset_head(self, num_classes: int) -> None:
        """Stays as it is."""
