"""Sparse attention on a grid: tiles of queries, each with the region of keys that its queries attend to.

A mask over all pairs would cost as much as dense attention. Here each tile only attends to its region, in one fused
kernel for all tiles, with a mask within the region: the cost is linear in N.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.layers.attention.base import MultiHead, Site
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded


class Axis(NamedTuple):
    """One side of the grid, of length L, cut into T tiles; rows and columns are cut independently."""

    queries: Tensor  # T t: the indices of each tile; a tile that is not full repeats its last index
    keys: Tensor  # T r: the indices of its region
    seen: Tensor | None  # T t r: which keys a query attends to; None: all
    home: Tensor  # L: the position of each index among the T t queries

    @property
    def mask(self) -> Tensor:
        """Which keys a query attends to, T t r."""
        if self.seen is not None:
            return self.seen
        return self.keys.new_ones(*self.queries.shape, self.keys.shape[1], dtype=torch.bool)

    def pairs(self) -> Tensor:
        """Whether index i attends to index j: L L."""
        length, tile = len(self.home), self.queries.shape[1]
        seen = self.mask.flatten(0, 1)[self.home]  # L r
        count = self.home.new_zeros(length, length).scatter_add(1, self.keys[self.home // tile], seen.long())
        return count > 0


Cut = Callable[[int], Axis]  # how a side of a given length is cut


class Tiles(Gridded):
    """The tables for the rows and columns of one grid; those of other grids are computed when needed."""

    def __init__(self, cuts: tuple[Cut, Cut], *, grid: Grid) -> None:
        super().__init__(grid)
        self.cuts = cuts
        for index, axis in enumerate(self._cut(grid)):
            for part, table in axis._asdict().items():
                self.register_buffer(f"{part}{index}", table, persistent=False)

    def _cut(self, grid: Grid) -> tuple[Axis, Axis]:
        return self.cuts[0](grid[0]), self.cuts[1](grid[1])

    def resize(self, grid: Grid) -> None:
        """Recomputes the tables for another grid."""
        self.grid = grid
        self.reset_tables(self.get_buffer("home0"))

    def reset_tables(self, like: Tensor) -> None:
        """Recomputes the tables, on the device of `like`."""
        for index, axis in enumerate(self._cut(self.grid)):
            for part, table in axis._asdict().items():
                setattr(self, f"{part}{index}", _moved(table, like.device))

    def forward(self, grid: Grid) -> tuple[Axis, Axis]:
        """How the rows and the columns of a grid are cut."""
        if grid == self.grid:
            kept = [Axis(*(getattr(self, f"{part}{index}") for part in Axis._fields)) for index in (0, 1)]
        else:
            device = self.get_buffer("home0").device
            kept = [Axis(*(_moved(table, device) for table in axis)) for axis in self._cut(grid)]  # type: ignore[arg-type]
        return kept[0], kept[1]


def _moved(table: Tensor | None, device: torch.device) -> Tensor | None:
    return None if table is None else table.to(device)


class TiledAttention(MultiHead):
    """Patches attend to the keys that `cuts` give them, and the prefix; prefix tokens to all: B P+N D -> B P+N D."""

    def __init__(self, site: Site, cuts: tuple[Cut, Cut]) -> None:
        super().__init__(site)
        self.tiles = Tiles(cuts, grid=site.grid)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self.heads(tokens)
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        mixed = self._patches(q[:, :, num_prefix:], k, v, grid)
        if num_prefix:
            prefix = F.scaled_dot_product_attention(q[:, :, :num_prefix], k, v)
            mixed = torch.cat([prefix, mixed], dim=2)
        return self.joined(mixed)

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N, with zeros for masked pairs."""
        q, k, _ = self.heads(tokens)
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device)
        logits = (q[:, :, rows] * self.head_dim**-0.5) @ k.transpose(-2, -1)  # B A R P+N
        return logits.masked_fill(~self._seen(rows, tokens.shape[1], grid), -float("inf")).softmax(dim=-1)

    def _seen(self, rows: Tensor, count: int, grid: Grid) -> Tensor:
        """Which tokens attend to which: R P+N."""
        num_prefix = count - grid[0] * grid[1]
        patch = (rows - num_prefix).clamp(min=0)  # R; not used for prefix tokens
        vertical, horizontal = (axis.pairs() for axis in self.tiles(grid))  # h h, w w
        y, x = vertical[patch // grid[1]], horizontal[patch % grid[1]]  # R h, R w
        seen = F.pad((y[:, :, None] & x[:, None]).flatten(1), (num_prefix, 0), value=True)  # R h w -> R P+N
        return seen | (rows < num_prefix)[:, None]

    def _patches(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """Queries B A N d of the patches, keys and values B A P+N d of all -> B A N d."""
        rows, columns = self.tiles(grid)
        num_prefix = k.shape[2] - q.shape[2]
        # Heads become a part of the batch and tiles take the axis of heads: one mask for all samples and heads.
        queries = _regions(q, grid, rows.queries, columns.queries)  # BA TS st d
        keys, values = (
            _with_prefix(_regions(x[:, :, num_prefix:], grid, rows.keys, columns.keys), x[:, :, :num_prefix])
            for x in (k, v)
        )  # BA TS P+rs d
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=_mask(rows, columns, num_prefix))
        shape = (*rows.queries.shape[:1], *columns.queries.shape, rows.queries.shape[1])
        mixed = mixed.flatten(1, 2).unflatten(1, shape).flatten(2, 3)  # BA TS st d -> BA T Ss t d
        mixed = mixed.index_select(2, columns.home).transpose(2, 3).flatten(1, 2)  # BA Tt w d
        return mixed.index_select(1, rows.home).flatten(1, 2).unflatten(0, q.shape[:2])  # BA h w d -> B A N d


def _regions(x: Tensor, grid: Grid, rows: Tensor, columns: Tensor) -> Tensor:
    """B A N d at the rows T t and the columns S s of each tile, column by column: BA TS st d."""
    maps = x.flatten(0, 1).unflatten(1, grid)  # BA h w d
    maps = maps.index_select(1, rows.flatten()).unflatten(1, rows.shape).transpose(2, 3)  # BA T w t d
    maps = maps.index_select(2, columns.flatten()).unflatten(2, columns.shape)  # BA T S s t d
    return maps.flatten(3, 4).flatten(1, 2)


def _with_prefix(regions: Tensor, prefix: Tensor) -> Tensor:
    """The prefix B A P d before every region BA TS r d."""
    if prefix.shape[2] == 0:
        return regions
    prefix = prefix.flatten(0, 1)[:, None].expand(-1, regions.shape[1], -1, -1)  # BA TS P d
    return torch.cat([prefix, regions], dim=2)


def _mask(rows: Axis, columns: Axis, num_prefix: int) -> Tensor | None:
    """The mask of the prefix and the region, for each query of a tile: 1 TS st P+rs."""
    if rows.seen is None and columns.seen is None:
        return None
    vertical, horizontal = rows.mask[:, None, None, :, None], columns.mask[None, :, :, None, :, None]
    seen = vertical & horizontal  # T 1 1 t 1 r & 1 S s 1 s' 1 -> T S s t s' r
    seen = F.pad(seen.flatten(4, 5).flatten(2, 3).flatten(0, 1), (num_prefix, 0), value=True)
    return seen[None]  # the fused kernel needs four axes
