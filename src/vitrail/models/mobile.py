"""The base of networks of inverted residuals: a convolution with stride 2, stages, and a wide final convolution."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers.conv import ConvNorm, coarsened
from vitrail.layers.patch import Grid
from vitrail.layers.stage import Stage, to_map
from vitrail.models.backbone import Features
from vitrail.models.initialise import initialise, initialise_convolutions
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class MobileConfig(StagedConfig):
    """Widths of the first and of the last convolution."""

    dynamic_size: bool = True
    stem_dim: Count
    final_dim: Count

    @property
    def num_levels(self) -> int:
        """How many maps of different sizes there are."""
        return len(self.depths)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse: strides 2, 4, 8 and so on."""
        return tuple(coarsened(image_size, 2 << level) for level in range(self.num_levels))


class Mobile(Staged):
    """Images -> stem -> stages -> a 1 x 1 convolution that widens the last map -> mean -> head."""

    config: MobileConfig

    def __init__(
        self,
        config: MobileConfig,
        stages: Iterable[Stage],
        *,
        stem: type[ConvNorm] = ConvNorm,
        activation: type[nn.Module] = nn.SiLU,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(config)
        self.stem = stem(config.channels, config.stem_dim, 3, stride=2, activation=activation(), eps=eps)
        self.stages = nn.ModuleList(stages)
        self.norm = nn.Identity()
        self.final = ConvNorm(config.dims[-1], config.final_dim, 1, activation=activation(), eps=eps)
        self.head = self.new_head()
        initialise(self, "trunc_normal")
        initialise_convolutions(self)

    @property
    def width(self) -> int:
        """The width of the vector that the head reads."""
        return self.config.final_dim

    def pooled(self, features: Features) -> Tensor:
        """Features -> the input of the head, B D: the mean of the last map after the wide convolution."""
        return self.final(to_map(features.patches, features.grid)).mean(dim=(2, 3))
