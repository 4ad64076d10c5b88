"""Fourier positions: sines and cosines of row and column, mapped to the width of the tokens."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.config import Count, Positive
from vitrail.errors import ConfigError
from vitrail.layers.patch import Grid
from vitrail.layers.position import AddedPosition, AddedPositionConfig, FixedPosition


@dataclass(frozen=True, kw_only=True)
class FourierConfig(AddedPositionConfig, kind="fourier"):
    """`bands` sines and cosines of the row and as many of the column, then a learned map (XCiT, arXiv:2106.09681).

    Rows and columns are relative to the size of the image, so that every grid spans the same positions.
    """

    bands: Count = 32
    theta: Positive = 10_000.0

    def __post_init__(self) -> None:
        """Raises ConfigError if `bands` is odd."""
        super().__post_init__()
        if self.bands % 2:
            raise ConfigError(f"bands is {self.bands}; it must be even (half are sines, half are cosines)")

    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> AddedPosition:
        """The layer: B P+N D -> B P+N D."""
        return FourierPosition(dim, self, grid=grid)


class FourierPosition(FixedPosition):
    """A computed table N 2b and a learned map of it to N D."""

    def __init__(self, dim: int, config: FourierConfig, *, grid: Grid) -> None:
        super().__init__(partial(fourier, bands=config.bands, theta=config.theta), grid=grid)
        self.projection = nn.Conv2d(2 * config.bands, dim, 1)

    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: N D."""
        table = super().at(grid).transpose(0, 1)[None, :, :, None]  # N 2b -> 1 2b N 1
        return self.projection(table)[0, :, :, 0].transpose(0, 1)

    def resize(self, grid: Grid) -> None:
        """Recomputes the table."""
        self.grid = grid
        self.reset_tables(self.table)


def fourier(grid: Grid, *, bands: int, theta: float) -> Tensor:
    """Sines and cosines in turn, of the row and then of the column, each from 0 (outside) to 2 pi (the last): N 2b."""
    rows, columns = (torch.arange(1, length + 1).float() / (length + 1e-6) * (2 * math.pi) for length in grid)
    step = theta ** (2 * torch.arange(bands).div(2, rounding_mode="floor") / bands)  # b; a sine and a cosine of each
    tables = []
    for axis in (rows, columns):
        angles = axis[:, None] / step  # L b
        tables.append(torch.stack([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=2).flatten(1))  # L b
    y, x = tables[0][:, None].expand(-1, grid[1], -1), tables[1][None].expand(grid[0], -1, -1)  # h w b
    return torch.cat([y, x], dim=2).flatten(0, 1)
