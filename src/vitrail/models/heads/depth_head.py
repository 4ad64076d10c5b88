"""The contract of every head that gives each pixel a distance."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.models.backbone import Backbone, Features


class DepthHeadConfig(Choice):
    """Which head gives each pixel a distance."""

    @abstractmethod
    def build(self, backbone: Backbone) -> "DepthHead":
        """The head for the layers or levels of a backbone."""


class DepthHead(nn.Module, ABC):
    """What it reads of a backbone -> distances, at a resolution of its own."""

    layers: tuple[int, ...] = ()  # blocks whose features it reads; none: it reads the last features alone

    @abstractmethod
    def read(self, backbone: Backbone, images: Tensor) -> list[Features]:
        """The features that it needs: B C H W -> Features of each layer."""

    @abstractmethod
    def forward(self, features: Sequence[Features]) -> Tensor:
        """Values B h w before they become positive."""

    @abstractmethod
    def positive(self, values: Tensor) -> Tensor:
        """Values as distances, not negative: B h w -> B h w."""
