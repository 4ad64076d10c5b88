"""Positions that are added to the tokens, and their resampling to another grid.

All of them are `forward(tokens, grid) -> tokens` for tokens B P+N D, where the last h * w tokens are the patches, row
by row. Positions that act inside attention are in `rope.py` and `relative.py`; "none" is an empty tuple of positions.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice, Positive
from vitrail.errors import ConfigError
from vitrail.layers.patch import Grid


class PositionConfig(Choice):
    """How positions are encoded: added to the tokens, or inside attention."""


class AddedPositionConfig(PositionConfig):
    """A position that is added to the tokens once, after patch embedding."""

    @abstractmethod
    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> "AddedPosition":
        """The layer: B P+N D -> B P+N D."""


@dataclass(frozen=True, kw_only=True)
class LearnedConfig(AddedPositionConfig, kind="learned"):
    """One learned vector per patch and, if `prefix` is set, per prefix token (arXiv:2010.11929)."""

    prefix: bool = True

    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> "AddedPosition":
        """The layer: B P+N D -> B P+N D."""
        return LearnedPosition(dim, grid=grid, num_prefix=num_prefix if self.prefix else 0)


@dataclass(frozen=True, kw_only=True)
class SinCos1DConfig(AddedPositionConfig, kind="sincos1d"):
    """Fixed sines and cosines of the index in row order (Vaswani et al. 2017, arXiv:1706.03762)."""

    theta: Positive = 10_000.0

    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> "AddedPosition":
        """The layer: B P+N D -> B P+N D."""
        return FixedPosition(partial(sincos_1d, dim=dim, theta=self.theta), grid=grid)


@dataclass(frozen=True, kw_only=True)
class SinCos2DConfig(AddedPositionConfig, kind="sincos2d"):
    """Fixed sines and cosines of column, then row; `endpoint`: SimpleViT's frequencies (arXiv:2205.01580)."""

    theta: Positive = 10_000.0
    endpoint: bool = False

    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> "AddedPosition":
        """The layer: B P+N D -> B P+N D."""
        table = partial(sincos_2d, dim=dim, theta=self.theta, endpoint=self.endpoint)
        return FixedPosition(table, grid=grid)


@dataclass(frozen=True, kw_only=True)
class FactoredConfig(AddedPositionConfig, kind="factored"):
    """One learned vector per row plus one per column (as in NaViT, arXiv:2307.06304)."""

    def build(self, dim: int, *, grid: Grid, num_prefix: int) -> "AddedPosition":
        """The layer: B P+N D -> B P+N D."""
        return FactoredPosition(dim, grid=grid)


class Gridded(nn.Module):
    """A layer whose weights or tables depend on the grid and can be resampled to another one."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid

    @abstractmethod
    def resize(self, grid: Grid) -> None:
        """Resamples the layer to `grid`, in place."""

    def resized(self, grid: Grid) -> bool:
        """Resamples the layer if `grid` differs from its own; returns whether it did."""
        if grid == self.grid:
            return False
        self.resize(grid)
        return True

    def reset_tables(self, like: Tensor) -> None:
        """Recomputes tables that are not weights, on the device and in the type of `like`."""


class AddedPosition(Gridded):
    """Adds one vector to each patch; subclasses define the vectors for any grid."""

    @abstractmethod
    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: N D, or P+N D if the prefix has positions too."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        table = self.at(grid)
        return tokens + F.pad(table, (0, 0, tokens.shape[1] - table.shape[0], 0))


class LearnedPosition(AddedPosition):
    """A learned table P+N D, resampled as an image of h x w pixels: by timm's filter, or a `bilinear` one."""

    bilinear = False

    def __init__(self, dim: int, *, grid: Grid, num_prefix: int) -> None:
        super().__init__(grid)
        self.num_prefix = num_prefix
        self.table = nn.Parameter(torch.zeros(num_prefix + grid[0] * grid[1], dim))

    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: P+N D."""
        if grid == self.grid:
            return self.table
        prefix, patches = self.table[: self.num_prefix], self.table[self.num_prefix :]
        return torch.cat([prefix, resample(patches, self.grid, grid, bilinear=self.bilinear)])

    def resize(self, grid: Grid) -> None:
        """Resamples the table in place."""
        self.table = nn.Parameter(self.at(grid).detach().clone(), requires_grad=self.table.requires_grad)
        self.grid = grid


class FactoredPosition(AddedPosition):
    """Learned rows h D and columns w D, summed."""

    def __init__(self, dim: int, *, grid: Grid) -> None:
        super().__init__(grid)
        self.rows = nn.Parameter(torch.zeros(grid[0], dim))
        self.columns = nn.Parameter(torch.zeros(grid[1], dim))

    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: N D."""
        rows, columns = self._resampled(grid)
        return (rows[:, None] + columns[None]).flatten(0, 1)  # h 1 D + 1 w D -> N D

    def _resampled(self, grid: Grid) -> tuple[Tensor, Tensor]:
        rows = resample(self.rows, (self.grid[0], 1), (grid[0], 1))
        columns = resample(self.columns, (1, self.grid[1]), (1, grid[1]))
        return rows, columns

    def resize(self, grid: Grid) -> None:
        """Resamples rows and columns in place."""
        rows, columns = self._resampled(grid)
        self.rows = nn.Parameter(rows.detach().clone(), requires_grad=self.rows.requires_grad)
        self.columns = nn.Parameter(columns.detach().clone(), requires_grad=self.columns.requires_grad)
        self.grid = grid


class FixedPosition(AddedPosition):
    """A table N D that is computed, not learned: exact at any grid."""

    table: Tensor

    def __init__(self, compute: Callable[[Grid], Tensor], *, grid: Grid) -> None:
        super().__init__(grid)
        self.compute = compute
        self.register_buffer("table", compute(grid), persistent=False)

    def at(self, grid: Grid) -> Tensor:
        """The vectors for a grid: N D."""
        return self.table if grid == self.grid else self.compute(grid).to(self.table)

    def resize(self, grid: Grid) -> None:
        """Recomputes the table."""
        self.table, self.grid = self.at(grid), grid

    def reset_tables(self, like: Tensor) -> None:
        """Recomputes the table, on the device and in the type of `like`."""
        self.table = self.compute(self.grid).to(like)


def sincos_1d(grid: Grid, *, dim: int, theta: float) -> Tensor:
    """Sines, then cosines of index / theta^(2i/D): N D."""
    if dim % 2:
        raise ConfigError(f"dim is {dim}; with sincos1d positions it must be even")
    angles = torch.outer(torch.arange(grid[0] * grid[1]).float(), frequencies(dim // 2, theta))  # N D/2
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def sincos_2d(grid: Grid, *, dim: int, theta: float, endpoint: bool) -> Tensor:
    """Sines and cosines of the column, then of the row, a quarter of the width each: N D."""
    if dim % 4:
        raise ConfigError(f"dim is {dim}; with sincos2d positions it must be divisible by 4")
    bands = frequencies(dim // 4, theta, endpoint=endpoint)
    y, x = torch.meshgrid(torch.arange(grid[0]).float(), torch.arange(grid[1]).float(), indexing="ij")  # h w
    x, y = torch.outer(x.flatten(), bands), torch.outer(y.flatten(), bands)  # N D/4
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


def frequencies(count: int, theta: float, *, endpoint: bool = False) -> Tensor:
    """`count` frequencies from 1 down towards 1/theta, or to 1/theta itself with `endpoint`."""
    steps = torch.arange(count).float() / max(count - 1 if endpoint else count, 1)
    return theta**-steps


def resample(table: Tensor, old: Grid, new: Grid, *, bilinear: bool = False) -> Tensor:
    """Resamples vectors on a grid, N D -> N' D, as timm does: bicubic, antialiased, in float32; or bilinear."""
    if old == new:
        return table
    image = table.float().unflatten(0, old).permute(2, 0, 1)[None]  # h w D -> 1 D h w
    image = F.interpolate(image, size=new, mode="bilinear" if bilinear else "bicubic", antialias=not bilinear)
    return image[0].permute(1, 2, 0).flatten(0, 1).to(table.dtype)  # h' w' D -> N' D
