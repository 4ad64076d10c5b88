"""Rotary position embeddings in two dimensions: queries and keys are rotated by angles from row and column."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.config import Count, Positive
from vitrail.errors import ConfigError
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, PositionConfig, frequencies


@dataclass(frozen=True, kw_only=True)
class RopeConfig(PositionConfig, kind="rope"):
    """RoPE in 2-D (RoFormer, arXiv:2104.09864; EVA-02, arXiv:2303.11331; DINOv3, arXiv:2508.10104).

    `coordinates`: "index" counts patches, scaled to `reference` if given (EVA); "centred" maps patch centres to
    [-1, 1] on each axis, times 2 pi (DINOv3). `pairs`: which two channels are rotated together, neighbours (EVA) or
    channels i and i + d/2 (DINOv3).
    """

    theta: Positive = 10_000.0
    coordinates: Literal["index", "centred"] = "index"
    reference: tuple[Count, Count] | None = None
    pairs: Literal["neighbours", "halves"] = "neighbours"

    def build(self, head_dim: int, *, grid: Grid, num_prefix: int) -> "Rope":
        """The layer: B A P+N d -> B A P+N d."""
        return Rope(head_dim, self, grid=grid, num_prefix=num_prefix)


class Rope(Gridded):
    """Rotates queries or keys, B A P+N d -> B A P+N d; prefix tokens are not rotated (angle zero)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, config: RopeConfig, *, grid: Grid, num_prefix: int) -> None:
        super().__init__(grid)
        if head_dim % 4:
            raise ConfigError(f"head_dim is {head_dim}; with rope positions it must be divisible by 4")
        self.head_dim, self.config, self.num_prefix = head_dim, config, num_prefix
        cos, sin = self._tables(grid)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _tables(self, grid: Grid) -> tuple[Tensor, Tensor]:
        config = self.config
        axes = [torch.arange(size).float() for size in grid]
        if config.coordinates == "centred":
            axes = [(axis + 0.5) / size * 2 - 1 for axis, size in zip(axes, grid, strict=True)]
            axes = [axis * 2 * math.pi for axis in axes]
        elif config.reference is not None:
            axes = [axis / size * to for axis, size, to in zip(axes, grid, config.reference, strict=True)]
        where = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # N 2, row then column
        angles = (where[..., None] * frequencies(self.head_dim // 4, config.theta)).flatten(1)  # N d/2
        angles = torch.cat([angles.new_zeros(self.num_prefix, angles.shape[1]), angles])  # P+N d/2
        angles = angles.tile(2) if config.pairs == "halves" else angles.repeat_interleave(2, dim=-1)  # P+N d
        return angles.cos(), angles.sin()

    def resize(self, grid: Grid) -> None:
        """Recomputes the tables."""
        self.grid = grid
        self.reset_tables(self.cos)

    def reset_tables(self, like: Tensor) -> None:
        """Recomputes the tables, on the device and in the type of `like`."""
        self.cos, self.sin = (table.to(like) for table in self._tables(self.grid))

    def forward(self, heads: Tensor, grid: Grid) -> Tensor:
        """B A P+N d -> B A P+N d."""
        cos, sin = self.cos, self.sin
        if grid != self.grid:
            cos, sin = (table.to(self.cos) for table in self._tables(grid))
        return heads * cos + self._quarter_turn(heads) * sin

    def _quarter_turn(self, heads: Tensor) -> Tensor:
        """Each pair (a, b) becomes (-b, a)."""
        if self.config.pairs == "halves":
            a, b = heads.chunk(2, dim=-1)
            return torch.cat([-b, a], dim=-1)
        a, b = heads.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([-b, a], dim=-1).flatten(-2)
