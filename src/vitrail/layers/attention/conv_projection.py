"""Convolutional projection: depth-wise convolutions before the maps to queries, keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, AttentionConfig, Site
from vitrail.layers.attention.reduction import ReducedKeys, Span, strided
from vitrail.layers.conv import ConvNorm
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map, to_tokens


@dataclass(frozen=True, kw_only=True)
class ConvProjectionConfig(AttentionConfig, kind="conv_projection"):
    """A 3 x 3 depth-wise convolution and batch norm before each of the three linear maps (CvT, arXiv:2103.15808).

    `stride` is that of keys and values. Prefix tokens skip the convolutions.
    """

    ordered = True
    stride: Count = 2

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return ConvProjectionAttention(self, site)


class ConvProjectionAttention(ReducedKeys):
    """B P+N D -> B P+N D with N / stride^2 keys; a key represents the patch at its centre and those up to the next."""

    maps = ("q", "k", "v")
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear

    def __init__(self, config: ConvProjectionConfig, site: Site) -> None:
        super().__init__(site)
        dim = site.dim
        self.scale = dim**-0.5  # of all heads together, as published
        self.stride = config.stride
        self.q_conv = ConvNorm(dim, dim, 3, groups=dim)
        self.k_conv = ConvNorm(dim, dim, 3, stride=config.stride, groups=dim)
        self.v_conv = ConvNorm(dim, dim, 3, stride=config.stride, groups=dim)

    def read(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries B A P+N d, and keys and values B A P+K d, with the prefix first."""
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        prefix, maps = tokens[:, :num_prefix], to_map(tokens[:, num_prefix:], grid)

        def filtered(conv: nn.Module) -> Tensor:
            return torch.cat([prefix, to_tokens(conv(maps))], dim=1)  # B P+K D

        return (
            self.split(self.q(filtered(self.q_conv))),
            self.split(self.k(filtered(self.k_conv))),
            self.split(self.v(filtered(self.v_conv))),
        )

    def spans(self, length: int) -> Sequence[Span]:
        """The rows that each row of keys represents, in a map of `length` rows; columns likewise."""
        return strided(length, self.stride)
