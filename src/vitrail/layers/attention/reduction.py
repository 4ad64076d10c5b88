"""Spatial-reduction attention: queries from all tokens, keys and values from a smaller map."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import Grid, PatchConv
from vitrail.layers.stage import to_map

POOLED = 7  # rows and columns of keys with `linear`, whatever the image size

Span = tuple[int, int]  # the rows, or columns, that one key represents: first:last


@dataclass(frozen=True, kw_only=True)
class ReductionConfig(AttentionConfig, kind="reduction"):
    """Keys and values from a map that a strided convolution reduced by `ratio` (PVT, arXiv:2102.12122).

    `linear`: average pooling to 7 x 7, then a 1 x 1 convolution and GELU, so that the cost is linear in the number of
    tokens; `ratio` is not used then (PVT v2, arXiv:2106.13797). `norm` is the norm after the convolution, by default
    that of the model. Prefix tokens are additional keys.

    A map that is not divisible by `ratio` is padded with zeros, so that every patch is in a key; a family whose weights
    were trained without the remaining rows and columns sets `cut`.
    """

    ordered = True
    cut: ClassVar[bool] = False
    ratio: Count = 2
    linear: bool = False
    norm: NormConfig | None = None

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return ReductionAttention(self, site)


class ReducedKeys(MultiHead):
    """Attention whose keys represent regions of the map; subclasses define the keys and their regions."""

    scale: float

    @abstractmethod
    def read(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries B A P+N d, and keys and values B A P+K d, with the prefix first."""

    @abstractmethod
    def spans(self, length: int) -> Sequence[Span]:
        """The rows that each row of keys represents, in a map of `length` rows; columns likewise."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self.read(tokens, grid)
        return self.joined(F.scaled_dot_product_attention(q, k, v, scale=self.scale))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N for the queries `rows`; the weight of a key is distributed evenly over its patches."""
        q, k, _ = self.read(tokens, grid)
        q = q if rows is None else q[:, :, rows]
        weights = (self.scale * q @ k.transpose(-2, -1)).softmax(dim=-1)  # B A R P+K
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        share = torch.kron(_shares(self.spans(grid[0]), grid[0]), _shares(self.spans(grid[1]), grid[1]))  # K N
        patches = weights[..., num_prefix:] @ share.to(weights)
        return torch.cat([weights[..., :num_prefix], patches], dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The value of the key of each patch, the mean if there are several, 0 if none: B P+N D -> B A P+N d."""
        v = self.read(tokens, grid)[2]  # B A P+K d
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        share = torch.kron(_shares(self.spans(grid[0]), grid[0]), _shares(self.spans(grid[1]), grid[1])).T.to(v)  # N K
        patches = F.normalize(share, p=1.0, dim=1) @ v[:, :, num_prefix:]
        return torch.cat([v[:, :, :num_prefix], patches], dim=2)


class ReductionAttention(ReducedKeys):
    """B P+N D -> B P+N D with K keys, where K is N / ratio^2, or 49 with `linear`."""

    maps = ("q", "kv")
    q: nn.Linear
    kv: nn.Linear

    def __init__(self, config: ReductionConfig, site: Site) -> None:
        super().__init__(site)
        self.scale, self.linear, self.cut = self.head_dim**-0.5, config.linear, config.cut
        self.ratio = 1 if config.linear else config.ratio
        self.reduce: nn.Module | None = None
        self.norm: nn.Module | None = None
        if config.linear or config.ratio > 1:
            self.reduce = PatchConv(site.dim, site.dim, self.ratio, stride=self.ratio)
            self.norm = (config.norm or site.norm).build(site.dim)

    def read(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries B A P+N d, and keys and values B A P+K d, with the prefix first."""
        k, v = self.kv(self._reduced(tokens, grid)).chunk(2, dim=-1)
        return self.split(self.q(tokens)), self.split(k), self.split(v)

    def _reduced(self, tokens: Tensor, grid: Grid) -> Tensor:
        if self.reduce is None or self.norm is None:
            return tokens
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        maps = to_map(tokens[:, num_prefix:], grid)
        if self.linear:
            maps = F.adaptive_avg_pool2d(maps, POOLED)
            reduced = F.gelu(self.norm(self.reduce(maps)))
        else:
            rows, columns = (self.ratio * self.keys(length) for length in grid)
            maps = F.pad(maps[:, :, :rows, :columns], (0, max(columns - grid[1], 0), 0, max(rows - grid[0], 0)))
            reduced = self.norm(self.reduce(maps))
        return torch.cat([tokens[:, :num_prefix], reduced], dim=1)

    def spans(self, length: int) -> Sequence[Span]:
        """The rows that each row of keys represents, in a map of `length` rows; columns likewise."""
        if self.linear:
            return [(i * length // POOLED, -(-(i + 1) * length // POOLED)) for i in range(POOLED)]
        return strided(length, self.ratio)[: self.keys(length)]

    def keys(self, length: int) -> int:
        """The rows of keys for a map of `length` rows, at least one; columns likewise."""
        return max(length // self.ratio, 1) if self.cut else -(-length // self.ratio)


def strided(length: int, stride: int) -> Sequence[Span]:
    """Regions of `stride` rows; the last one may be smaller."""
    return [(first, min(first + stride, length)) for first in range(0, length, stride)]


def _shares(spans: Sequence[Span], length: int) -> Tensor:
    """The share of each row in each key: keys by rows, each key sums to 1."""
    shares = torch.zeros(len(spans), length)
    for key, (first, end) in enumerate(spans):
        shares[key, first:end] = 1 / (end - first)
    return shares
