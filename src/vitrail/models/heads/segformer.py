"""The all-MLP head of SegFormer (Xie et al. 2021, arXiv:2105.15203)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.config import Count, Rate
from vitrail.layers.bilinear import resized
from vitrail.layers.conv import ConvNorm
from vitrail.layers.stage import to_map, to_tokens
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.segmenter import Segmenter, SegmenterConfig


@dataclass(frozen=True, kw_only=True)
class SegFormerConfig(SegmenterConfig, kind="segformer"):
    """Every level of a staged backbone, brought to one width and to the finest resolution."""

    dim: Count = 256
    dropout: Rate = 0.1

    def build(self, backbone: Backbone, num_classes: int) -> "SegFormer":
        """The head for the levels of a backbone."""
        return SegFormer(self, backbone.config.level_dims, num_classes)


class SegFormer(Segmenter):
    """A linear map of each level, all of them joined by a 1 x 1 convolution."""

    def __init__(self, config: SegFormerConfig, widths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(width, config.dim) for width in widths)
        self.fuse = ConvNorm(config.dim * len(widths), config.dim, 1, activation=nn.ReLU())
        self.drop = nn.Dropout(config.dropout)
        self.classifier = nn.Conv2d(config.dim, num_classes, 1)

    def forward(self, features: Features) -> Tensor:
        """B K h w at the resolution of the finest level."""
        finest = features.pyramid[0].shape[2:]
        maps = [
            resized(to_map(linear(to_tokens(level)), (level.shape[2], level.shape[3])), finest)
            for linear, level in zip(self.levels, features.pyramid, strict=True)
        ]
        return self.classifier(self.drop(self.fuse(torch.cat(maps[::-1], dim=1))))
