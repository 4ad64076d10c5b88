"""Relative position bias: one learned number per head and offset, added to the attention logits."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded, PositionConfig, resample
from vitrail.layers.strips import Strips, in_strips


@dataclass(frozen=True, kw_only=True)
class RelativeConfig(PositionConfig, kind="relative"):
    """A table over offsets (Swin, arXiv:2103.14030; with three entries for prefix tokens: BEiT, arXiv:2106.08254)."""

    def build(self, num_heads: int, *, grid: Grid, num_prefix: int) -> "RelativeBias":
        """The layer: grid -> A P+N P+N."""
        return RelativeBias(num_heads, grid=grid, num_prefix=num_prefix)


class RelativeBias(Gridded):
    """A bias A P+N P+N from a table of (2h-1)(2w-1) offsets and three entries for the prefix."""

    def __init__(self, num_heads: int, *, grid: Grid, num_prefix: int) -> None:
        super().__init__(grid)
        self.num_prefix = num_prefix
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.table = nn.Parameter(torch.zeros(offsets + (3 if num_prefix else 0), num_heads))

    def forward(self, grid: Grid) -> Tensor:
        """The bias for a grid: A P+N P+N."""
        return self.strips(grid).whole()

    def strips(self, grid: Grid) -> Strips:
        """The same bias in compact form, without a value for every pair."""
        (rows, columns), table = grid, self._table_at(grid).T  # A (2h-1)(2w-1)+3
        offsets, extra = table.tensor_split([(2 * rows - 1) * (2 * columns - 1)], dim=1)
        strips = in_strips(offsets.unflatten(1, (2 * rows - 1, 2 * columns - 1)))
        if self.num_prefix == 0:
            return Strips(strips, extra, extra[..., None].expand(-1, -1, rows * columns))  # A 0 and A 0 N
        to_patch, from_patch, within = extra.split(1, dim=1)  # A 1 each
        prefix_queries = torch.cat(
            [within.expand(-1, self.num_prefix), to_patch.expand(-1, rows * columns)], dim=1
        )  # A P+N
        return Strips(
            strips, from_patch.expand(-1, self.num_prefix), prefix_queries[:, None].expand(-1, self.num_prefix, -1)
        )

    def resize(self, grid: Grid) -> None:
        """Resamples the table in place."""
        table = self._table_at(grid).detach().clone()
        self.table = nn.Parameter(table, requires_grad=self.table.requires_grad)
        self.grid = grid

    def _table_at(self, grid: Grid) -> Tensor:
        """The table resampled to a grid; the entries of the prefix stay."""
        if grid == self.grid:
            return self.table
        old, new = ((2 * h - 1, 2 * w - 1) for h, w in (self.grid, grid))
        offsets, extra = self.table[: old[0] * old[1]], self.table[old[0] * old[1] :]
        return torch.cat([resample(offsets, old, new), extra])


def relative_index(grid: Grid, num_prefix: int) -> Tensor:
    """The index of the table's entry for each pair of tokens, query by key: P+N P+N.

    With a prefix, the last three entries are: prefix to patch, patch to prefix, prefix to prefix.
    """
    rows, columns = grid
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    y, x = y.flatten(), x.flatten()  # N
    dy = y[:, None] - y[None] + rows - 1
    dx = x[:, None] - x[None] + columns - 1
    index = dy * (2 * columns - 1) + dx  # N N
    if num_prefix == 0:
        return index
    offsets = (2 * rows - 1) * (2 * columns - 1)
    full = torch.full((num_prefix + rows * columns, num_prefix + rows * columns), offsets + 2)
    full[:num_prefix, num_prefix:] = offsets
    full[num_prefix:, :num_prefix] = offsets + 1
    full[num_prefix:, num_prefix:] = index
    return full
