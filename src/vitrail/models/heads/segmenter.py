"""The contract of every segmenter, and the plain ones: linear, SETR."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitrail.config import Choice, Count, Rate
from vitrail.layers.bilinear import resized
from vitrail.layers.conv import ConvNorm
from vitrail.models.backbone import Backbone, Features


class SegmenterConfig(Choice):
    """Which head gives each pixel a class."""

    @abstractmethod
    def build(self, backbone: Backbone, num_classes: int) -> "Segmenter":
        """The head for the levels of a backbone."""


class Segmenter(nn.Module, ABC):
    """Features -> class logits B K h w, at a resolution of its own."""

    def read(self, backbone: Backbone, images: Tensor) -> Features:
        """The features that it needs: B C H W -> Features."""
        return backbone.features(images)

    @abstractmethod
    def forward(self, features: Features) -> Tensor:
        """B K h w."""


@dataclass(frozen=True, kw_only=True)
class LinearSegmenterConfig(SegmenterConfig, kind="linear"):
    """One linear map of each patch of the last level: what the backbone itself knows."""

    def build(self, backbone: Backbone, num_classes: int) -> "LinearSegmenter":
        """The head for the last level of a backbone."""
        return LinearSegmenter(backbone.config.level_dims[-1], num_classes)


class LinearSegmenter(Segmenter):
    """A 1 x 1 convolution of the last level."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(width, num_classes, 1)

    def forward(self, features: Features) -> Tensor:
        """B K h w, as many as there are patches."""
        return self.classifier(features.pyramid[-1])


@dataclass(frozen=True, kw_only=True)
class SetrConfig(SegmenterConfig, kind="setr"):
    """Convolutions on the last level of a plain ViT (SETR, arXiv:2012.15840).

    "naive" is one 1 x 1 convolution before the classifier; "pup" doubles the resolution four times, with a 3 x 3
    convolution before each.
    """

    decoder: Literal["naive", "pup"] = "pup"
    dim: Count = 256
    dropout: Rate = 0.0

    def build(self, backbone: Backbone, num_classes: int) -> "Setr":
        """The head for the last level of a backbone."""
        return Setr(self, backbone.config.level_dims[-1], num_classes)


class Setr(Segmenter):
    """Convolutions with batch norm, upsampling between them where they are progressive."""

    def __init__(self, config: SetrConfig, width: int, num_classes: int) -> None:
        super().__init__()
        kernel, count = (3, 4) if config.decoder == "pup" else (1, 1)
        self.doubles = config.decoder == "pup"
        self.layers = nn.ModuleList(
            ConvNorm(config.dim if index else width, config.dim, kernel, activation=nn.ReLU()) for index in range(count)
        )
        self.drop = nn.Dropout2d(config.dropout)
        self.classifier = nn.Conv2d(config.dim, num_classes, 1)

    def forward(self, features: Features) -> Tensor:
        """B K h w, or sixteen times as many rows and columns."""
        maps = features.pyramid[-1]
        for layer in self.layers:
            maps = layer(maps)
            if self.doubles:
                maps = resized(maps, (2 * maps.shape[2], 2 * maps.shape[3]))
        return self.classifier(self.drop(maps))
