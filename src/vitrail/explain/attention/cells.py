"""Cells of several patches, in which the attention of fine grids is shown."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.layers.patch import Grid


def cell_of_patch(grid: Grid, side: int) -> Tensor:
    """The index of the cell of `side` x `side` patches that each patch of a grid h w is in: h*w, rows first."""
    rows, columns = torch.arange(grid[0]) // side, torch.arange(grid[1]) // side
    return (rows[:, None] * -(-grid[1] // side) + columns).flatten()


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """The attention of one layer for one image: `weights` A R R over P prefix tokens and cells, rows are queries.

    A cell is `side` x `side` patches of the grid (fewer at the far edges): the mean over its queries, the sum over its
    keys, so that each row still sums to 1.
    """

    index: int  # among the model's attention layers
    name: str
    grid: Grid  # of patches
    side: int
    prefix: tuple[str, ...]
    weights: Tensor

    @property
    def cells(self) -> Grid:
        """Rows and columns of cells."""
        return -(-self.grid[0] // self.side), -(-self.grid[1] // self.side)
