"""Multi-scale deformable attention: queries read a few points of every level (Deformable DETR, arXiv:2010.04159)."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import xavier_uniform_, zeros_

from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention.deformable import tents
from vitrail.layers.patch import Grid


class MultiScaleDeformableAttention(nn.Module):
    """Queries B Q D look at `points` places of each of L maps, in each head: B Q D -> B Q D.

    The maps come as tokens B S D, level after level, rows first, with the grid of each. A query stands at a reference
    (x, y), from 0 to 1 over the part of each map that counts, or is a box (x, y, width, height), whose size then scales
    the offsets. Both offsets and attention are linear in the query: no key is ever compared.
    """

    def __init__(self, dim: int, num_heads: int, *, levels: int = 4, points: int = 4) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(f"dim {dim} does not divide into {num_heads} heads")
        self.num_heads, self.levels, self.points = num_heads, levels, points
        self.offsets = nn.Linear(dim, num_heads * levels * points * 2)
        self.attention = nn.Linear(dim, num_heads * levels * points)
        self.value = nn.Linear(dim, dim)
        self.projection = nn.Linear(dim, dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's start: each head looks in a direction of its own, each point one pixel further, all alike."""
        for linear in (self.offsets, self.attention, self.value, self.projection):
            zeros_(linear.bias)
        zeros_(self.offsets.weight)
        zeros_(self.attention.weight)
        xavier_uniform_(self.value.weight)
        xavier_uniform_(self.projection.weight)
        angles = torch.arange(self.num_heads).float() * (2 * math.pi / self.num_heads)
        directions = torch.stack([angles.cos(), angles.sin()], dim=-1)
        directions = directions / directions.abs().amax(dim=-1, keepdim=True)  # A 2, on the edge of a square
        distances = torch.arange(1, self.points + 1)
        bias = directions[:, None, None] * distances[:, None]  # A 1 P 2
        self.offsets.bias.copy_(bias.expand(-1, self.levels, -1, -1).flatten())

    def forward(
        self, queries: Tensor, references: Tensor, tokens: Tensor, grids: Sequence[Grid], padding: Tensor | None = None
    ) -> Tensor:
        """B Q D, B Q L 2 (or 4), B S D -> B Q D; what `padding`, B S, marks is read as zero."""
        self._check(references, tokens, grids)
        values = self.contents(queries, references, tokens, grids, padding).transpose(2, 3).flatten(0, 1)  # BA d S
        places = self.places(queries, references, grids).transpose(1, 2).flatten(0, 1)  # BA Q L P 2
        read = [
            # Here -1 and 1 are the edges of the map; outside of it there is nothing.
            F.grid_sample(level.unflatten(2, grid).to(places.dtype), 2 * places[:, :, index] - 1, align_corners=False)
            for index, (level, grid) in enumerate(zip(values.split(_sizes(grids), dim=2), grids, strict=True))
        ]
        found = torch.cat(read, dim=-1).to(values.dtype)  # BA d Q LP
        shares = self.shares(queries).flatten(3).transpose(1, 2).flatten(0, 1)  # BA Q LP
        mixed = torch.einsum("bdqp,bqp->bqd", found, shares)
        return self.projection(mixed.unflatten(0, (-1, self.num_heads)).transpose(1, 2).flatten(2))  # B A Q d -> B Q D

    def weights(
        self,
        queries: Tensor,
        references: Tensor,
        tokens: Tensor,
        grids: Sequence[Grid],
        padding: Tensor | None = None,
        *,
        rows: Tensor | None = None,
    ) -> Tensor:
        """How much the queries `rows` (all of them by default) read of each token: B A R S.

        The pixels around a place share in it; a row sums to less where it reads padding or beyond the edge.
        """
        self._check(references, tokens, grids)
        if rows is not None:
            queries, references = queries[:, rows], references[:, rows]
        shares, places, found = self.shares(queries), self.places(queries, references, grids), []
        for index, (height, width) in enumerate(grids):
            x, y = places[:, :, :, index].unbind(-1)  # B R A P each
            down, right = tents(y * height - 0.5, height), tents(x * width - 0.5, width)
            share = shares[:, :, :, index].to(down)
            found.append(torch.einsum("brap,braph,brapw->barhw", share, down, right).flatten(3))
        weights = torch.cat(found, dim=3).to(shares.dtype)
        return weights if padding is None else weights.masked_fill(padding[:, None, None], 0.0)

    def contents(
        self,
        queries: Tensor,
        references: Tensor,
        tokens: Tensor,
        grids: Sequence[Grid],
        padding: Tensor | None = None,
    ) -> Tensor:
        """What each token gives: B A S d; `weights` times it is what `projection` reads."""
        values = self.value(tokens)
        if padding is not None:
            values = values.masked_fill(padding[..., None], 0.0)
        return values.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def shares(self, queries: Tensor) -> Tensor:
        """How much each query takes of each place: B Q D -> B Q A L P, summing to 1 over all levels and points."""
        logits = self.attention(queries).unflatten(2, (self.num_heads, -1))  # B Q A LP
        return logits.softmax(dim=-1).unflatten(3, (self.levels, self.points))

    def places(self, queries: Tensor, references: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Where each query looks, (x, y) from 0 to 1 in each level: B Q D, B Q L 2 (or 4) -> B Q A L P 2, float32."""
        shape = (self.num_heads, self.levels, self.points, 2)
        exact = torch.promote_types(queries.dtype, torch.float32)  # bfloat16 would shift places by whole pixels
        offsets = self.offsets(queries).unflatten(2, shape).to(exact)  # B Q A L P 2
        references = references.to(exact)[:, :, None, :, None]  # B Q 1 L 1 2 or 4
        if references.shape[-1] == 2:
            sizes = offsets.new_tensor([(columns, rows) for rows, columns in grids])
            return references + offsets / sizes[:, None]
        return references[..., :2] + offsets / self.points * references[..., 2:] / 2

    def _check(self, references: Tensor, tokens: Tensor, grids: Sequence[Grid]) -> None:
        if len(grids) != self.levels or references.shape[2] != self.levels:
            raise InputError(
                f"the layer reads {self.levels} levels; there are {len(grids)} grids, and references for "
                f"{references.shape[2]} levels"
            )
        if references.shape[-1] not in (2, 4):
            raise InputError(f"references have {references.shape[-1]} numbers; a point has 2, a box 4")
        if sum(_sizes(grids)) != tokens.shape[1]:
            raise InputError(f"grids {list(grids)} hold {sum(_sizes(grids))} tokens; there are {tokens.shape[1]}")


def _sizes(grids: Sequence[Grid]) -> list[int]:
    return [rows * columns for rows, columns in grids]
