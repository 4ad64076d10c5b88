"""Attention with a learned bias by distance (LeViT), and its subsampled form with fewer queries."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.errors import ConfigError
from vitrail.layers.attention.base import Attention, AttentionConfig, Site, refuse_positions
from vitrail.layers.attention.by_rows import attend_by_strips
from vitrail.layers.dropout import Dropout
from vitrail.layers.linear_norm import LinearNorm
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, resample
from vitrail.layers.stage import to_map, to_tokens
from vitrail.layers.strips import Strips, in_strips


@dataclass(frozen=True, kw_only=True)
class BiasedConfig(AttentionConfig, kind="biased"):
    """softmax(q k / sqrt(d) + b(|dy|, |dx|)) v with batch norms and hard-swish (LeViT, arXiv:2104.01136).

    The width of queries and keys is `head_dim`, that of values `value_ratio` times `head_dim`.
    """

    ordered = True
    head_dim: Count | None = None
    value_ratio: Positive = 2.0

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return BiasedAttention(self, site)


class OffsetBias(Gridded):
    """One learned number per head and absolute offset between patches: grid -> A Q N.

    Queries are on every `stride`-th row and column.
    """

    def __init__(self, num_heads: int, *, grid: Grid, stride: int = 1) -> None:
        super().__init__(grid)
        self.stride = stride
        self.table = nn.Parameter(torch.zeros(num_heads, grid[0] * grid[1]))

    def resize(self, grid: Grid) -> None:
        """Resamples the table in place."""
        self.table = nn.Parameter(self._table_at(grid).detach().clone(), requires_grad=self.table.requires_grad)
        self.grid = grid

    def forward(self, grid: Grid) -> Tensor:
        """The bias for a grid: A Q N."""
        return self.strips(grid).whole()

    def strips(self, grid: Grid, num_prefix: int = 0) -> Strips:
        """The same bias in compact form; it is zero for prefix tokens."""
        table = self._table_at(grid).unflatten(1, grid)  # A h w
        down, right = (torch.arange(1 - length, length, device=table.device).abs() for length in grid)
        strips = in_strips(table[:, down][:, :, right], self.stride)  # A 2h-1 2w-1 -> A w' 2h-1 w
        zeros = strips.new_zeros(len(strips), num_prefix, num_prefix + grid[0] * grid[1])
        return Strips(strips, zeros[..., 0], zeros, self.stride)

    def _table_at(self, grid: Grid) -> Tensor:
        return self.table if grid == self.grid else resample(self.table.T, self.grid, grid).T


def offset_index(grid: Grid, stride: int) -> Tensor:
    """The index of the table's entry for each query and key, |dy| w + |dx|: Q N."""
    rows, columns = torch.arange(grid[0]), torch.arange(grid[1])
    dy = (rows[::stride, None] - rows).abs()  # h' h
    dx = (columns[::stride, None] - columns).abs()  # w' w
    index = dy[:, None, :, None] * grid[1] + dx[None, :, None, :]  # h' w' h w
    return index.flatten(2).flatten(0, 1)


class BiasedAttention(Attention):
    """B P+N D -> B P+N D; the bias of prefix tokens is zero."""

    def __init__(self, config: BiasedConfig, site: Site) -> None:
        super().__init__()
        refuse_positions(self, site)
        if config.head_dim is None and site.dim % site.num_heads:
            raise ConfigError(f"dim {site.dim} is not divisible by num_heads {site.num_heads}; set head_dim")
        self.num_heads = site.num_heads
        self.head_dim = config.head_dim or site.dim // site.num_heads
        self.value_dim = max(int(config.value_ratio * self.head_dim), 1)
        self.qkv: nn.Module = LinearNorm(site.dim, self.num_heads * (2 * self.head_dim + self.value_dim))
        self.activation: nn.Module = nn.Hardswish()
        self.projection: nn.Module = LinearNorm(self.num_heads * self.value_dim, site.dim, gain=0.0)
        self.drop = Dropout(site.dropout)
        self.bias = OffsetBias(self.num_heads, grid=site.grid)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        bias = self.bias.strips(grid, tokens.shape[1] - grid[0] * grid[1])
        mixed = attend_by_strips(*self._heads(tokens), bias, scale=self.head_dim**-0.5)  # B A P+N v
        return self.drop(self.projection(self.activation(mixed.transpose(1, 2).flatten(2))))  # B A N v -> B N D

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N for the queries `rows`."""
        q, k, _ = self._heads(tokens)
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        bias = self.bias.strips(grid, num_prefix).whole()  # A P+N P+N
        if rows is not None:
            q, bias = q[:, :, rows], bias[:, rows]
        return (q @ k.transpose(-2, -1) * self.head_dim**-0.5 + bias).softmax(dim=-1)

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B P+N D -> B A P+N v."""
        return self._heads(tokens)[2]

    @property
    def readout(self) -> nn.Module:
        """The module after the heads: the activation."""
        return self.activation

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys B A P+N d, values B A P+N v; they are interleaved head by head."""
        parts = self.qkv(tokens).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # B A P+N 2d+v
        q, k, v = parts.split([self.head_dim, self.head_dim, self.value_dim], dim=-1)
        return q, k, v


class SubsampledAttention(nn.Module):
    """Queries from every other row and column, keys from all patches: B C h w -> B D h/2 w/2 (arXiv:2104.01136)."""

    def __init__(
        self, channels: int, dim: int, *, grid: Grid, num_heads: int, head_dim: int, value_ratio: float = 4.0
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.value_dim = num_heads, head_dim, int(value_ratio * head_dim)
        self.q = LinearNorm(channels, num_heads * head_dim)
        self.kv = LinearNorm(channels, num_heads * (head_dim + self.value_dim))
        self.activation = nn.Hardswish()
        self.projection = LinearNorm(num_heads * self.value_dim, dim)
        self.bias = OffsetBias(num_heads, grid=grid, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """B C h w -> B D h/2 w/2, rounded up."""
        subsampled = maps[:, :, ::2, ::2]
        q = self.q(to_tokens(subsampled)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # B A Q d
        kv = self.kv(to_tokens(maps)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # B A N d+v
        k, v = kv.split([self.head_dim, self.value_dim], dim=-1)
        bias = self.bias.strips((maps.shape[2], maps.shape[3]))
        mixed = attend_by_strips(q, k, v, bias, scale=self.head_dim**-0.5)  # B A Q v
        return to_map(self.projection(self.activation(mixed.transpose(1, 2).flatten(2))), bias.queries)
