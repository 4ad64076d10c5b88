"""DPT: dense prediction from several layers of a backbone (Ranftl et al. 2021, arXiv:2103.13413)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.layers.dpt import Fusion, Reassemble
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.depth_head import DepthHead, DepthHeadConfig

_SCALES = (4.0, 2.0, 1.0, 0.5)  # resolutions over that of the patches, for the layers of a plain ViT
_LAST = 32  # channels before the last convolution
_LARGEST = 10.0  # logarithm of a distance


@dataclass(frozen=True, kw_only=True)
class DptConfig(DepthHeadConfig, kind="dpt"):
    """Four layers of a plain ViT at four resolutions, or the levels of a staged backbone, joined from coarse to fine.

    `layers` are indices of blocks, by default four at even distances; `widths` are those of the maps that are made of
    them, `dim` is that of the joined maps. "project" adds the class token to each patch by a linear map, "ignore"
    leaves it out; "auto" projects where there is one. "exp" reads the last map as logarithms; "relu" cuts off what is
    negative, as in published models.
    """

    dim: Count = 256
    widths: tuple[Count, ...] = (96, 192, 384, 768)
    layers: tuple[int, ...] | None = None
    readout: Literal["auto", "project", "ignore"] = "auto"
    output: Literal["exp", "relu"] = "exp"

    def build(self, backbone: Backbone) -> "Dpt":
        """The head for the layers or levels of a backbone."""
        return Dpt(self, backbone)

    def chosen(self, depth: int) -> tuple[int, ...]:
        """The blocks that are read, of so many."""
        if self.layers is not None:
            return self.layers
        return tuple(max(depth * (index + 1) // len(self.widths) - 1, 0) for index in range(len(self.widths)))


class Dpt(DepthHead):
    """Reassembled maps, fused from coarse to fine, and three convolutions."""

    def __init__(self, config: DptConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config, widths = config, backbone.config.level_dims
        self.plain = len(widths) == 1
        has_class = self.plain and bool(getattr(backbone.config, "class_token", False))
        projects = config.readout == "project" or (config.readout == "auto" and has_class)
        if projects and not has_class:
            raise ConfigError("readout=project needs a plain ViT with a class token; use auto or ignore")
        if self.plain:
            self.layers = config.chosen(len(backbone.blocks))
            if not len(self.layers) == len(config.widths) == len(_SCALES):
                raise ConfigError(f"layers and widths need {len(_SCALES)} entries each, one for each resolution")
            self.levels = nn.ModuleList(
                Reassemble(widths[0], width, scale, readout=projects)
                for width, scale in zip(config.widths, _SCALES, strict=True)
            )
            inner: Sequence[int] = config.widths
        else:
            self.levels, inner = nn.ModuleList(nn.Identity() for _ in widths), widths
        self.joins = nn.ModuleList(nn.Conv2d(width, config.dim, 3, padding=1, bias=False) for width in inner)
        self.fusions = nn.ModuleList(Fusion(config.dim, first=index == 0) for index in range(len(inner)))
        half = max(config.dim // 2, 1)
        self.head = nn.ModuleList(
            (nn.Conv2d(config.dim, half, 3, padding=1), nn.Conv2d(half, _LAST, 3, padding=1), nn.Conv2d(_LAST, 1, 1))
        )

    def read(self, backbone: Backbone, images: Tensor) -> list[Features]:
        """The layers of a plain ViT, without its final norm, or the features of a staged backbone."""
        return backbone.intermediates(images, self.layers) if self.plain else [backbone.features(images)]

    def forward(self, features: Sequence[Features]) -> Tensor:
        """Values B h w before they become positive."""
        if self.plain:
            maps = [level(*one[:3]) for level, one in zip(self.levels, features, strict=True)]
        else:
            maps = list(features[0].pyramid)
        joined = [join(level) for join, level in zip(self.joins, maps, strict=True)]
        fused: Tensor | None = None
        for fusion, level in zip(self.fusions, reversed(joined), strict=True):
            fused = fusion(level, fused)
        assert fused is not None  # noqa: S101  (there is at least one level)
        first, second, last = self.head
        grown = F.interpolate(first(fused), scale_factor=2.0, mode="bilinear", align_corners=True)
        return last(F.relu(second(grown)))[:, 0]

    def positive(self, values: Tensor) -> Tensor:
        """Values as depth: B h w -> B h w, not negative."""
        if self.config.output == "relu":
            return values.relu()
        within = values.clamp(-_LARGEST, _LARGEST)
        if self.training:  # beyond the limits a clamp has no gradient, and such values would never come back
            within = values + (within - values).detach()
        return within.exp()
