"""U-Net's decoder (Ronneberger et al. 2015, arXiv:1505.04597) for the levels of any backbone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.config import Count, CountFromZero, Rate
from vitrail.layers.bilinear import resized
from vitrail.layers.conv import ConvNorm, channels_last
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.segmenter import Segmenter, SegmenterConfig


@dataclass(frozen=True, kw_only=True)
class UNetConfig(SegmenterConfig, kind="unet"):
    """Levels joined from coarse to fine, two 3 x 3 convolutions after each: for thin and small objects.

    `widths` are those of the joined maps, coarse to fine; the last one repeats where there are more levels. `detail` is
    the width of a few convolutions that read the image itself at half its resolution, which joins them last; without
    it (0) the answer has the resolution of the finest level, a quarter with most staged backbones.
    """

    widths: tuple[Count, ...] = (256, 128, 64, 32)
    detail: CountFromZero = 32
    dropout: Rate = 0.1

    def build(self, backbone: Backbone, num_classes: int) -> "UNet":
        """The head for the levels of a backbone."""
        return UNet(self, backbone.config.level_dims, backbone.config.channels, num_classes)


class UNet(Segmenter):
    """Each level is resized to the next finer one, joined with it and convolved twice."""

    def __init__(self, config: UNetConfig, widths: Sequence[int], channels: int, num_classes: int) -> None:
        super().__init__()
        self.detail = _detail(channels, config.detail) if config.detail else None
        levels = ([config.detail] if config.detail else []) + list(widths)  # fine to coarse
        wide, joints = levels[-1], list[nn.Module]()
        for index, skip in enumerate(levels[-2::-1]):
            dim = config.widths[min(index, len(config.widths) - 1)]
            joints.append(nn.Sequential(_convolution(wide + skip, dim), _convolution(dim, dim)))
            wide = dim
        self.joints = nn.ModuleList(joints)
        self.drop = nn.Dropout2d(config.dropout)
        self.classifier = nn.Conv2d(wide, num_classes, 1)

    def read(self, backbone: Backbone, images: Tensor) -> Features:
        """The features of the backbone, whose first level is then that of the detail branch."""
        features = backbone.features(images)
        if self.detail is None:
            return features
        return features._replace(pyramid=(self.detail(channels_last(images)), *features.pyramid))

    def forward(self, features: Features) -> Tensor:
        """B K h w at the resolution of the finest level."""
        maps = features.pyramid[-1]
        for join, skip in zip(self.joints, features.pyramid[-2::-1], strict=True):
            maps = join(torch.cat([resized(maps, skip.shape[2:]), skip], dim=1))
        return self.classifier(self.drop(maps))


def _convolution(width: int, dim: int, stride: int = 1) -> ConvNorm:
    return ConvNorm(width, dim, 3, stride=stride, activation=nn.ReLU())


def _detail(channels: int, dim: int) -> nn.Sequential:
    return nn.Sequential(_convolution(channels, dim, 2), _convolution(dim, dim))
