"""Multi-scale deformable attention: queries sample a few points of every level (Deformable DETR, arXiv:2010.04159)."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import xavier_uniform_, zeros_

from vitrail.errors import ConfigError, InputError
from vitrail.layers import kernels
from vitrail.layers.attention.deformable import linear_weights
from vitrail.layers.patch import Grid


class MultiScaleDeformableAttention(nn.Module):
    """Queries B Q D sample `points` points of each of L maps, in each head: B Q D -> B Q D.

    The maps are given as tokens B S D, level after level, row by row, with the grid of each. The reference of a query
    is a point (x, y), from 0 to 1 over the valid part of each map, or a box (x, y, width, height), whose size scales
    the offsets. Offsets and attention weights are linear maps of the query; there are no keys.
    """

    def __init__(self, dim: int, num_heads: int, *, levels: int = 4, points: int = 4) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(f"dim {dim} is not divisible by num_heads {num_heads}")
        self.num_heads, self.levels, self.points = num_heads, levels, points
        self.offsets = nn.Linear(dim, num_heads * levels * points * 2)
        self.attention = nn.Linear(dim, num_heads * levels * points)
        self.value = nn.Linear(dim, dim)
        self.projection = nn.Linear(dim, dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's initialisation: one direction per head, each point one pixel further, equal weights."""
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
        """B Q D, B Q L 2 (or 4), B S D -> B Q D; tokens where `padding`, B S, is True count as zero."""
        self._check(references, tokens, grids)
        values = self.contents(queries, references, tokens, grids, padding)  # B A S d
        points, shares = self.locations(queries, references, grids), self.shares(queries)
        if self._fits_kernel(queries, values):
            mixed = kernels.sample_levels(values.transpose(1, 2), points, shares, grids)  # B Q A d
        else:
            mixed = sampled(values, points, shares, grids)
        return self.projection(mixed.flatten(2))  # B Q A d -> B Q D

    def _fits_kernel(self, queries: Tensor, values: Tensor) -> bool:
        repeatable = torch.are_deterministic_algorithms_enabled()  # the kernel adds gradients up in any order
        return kernels.suits(queries) and values.shape[3] in kernels.SAMPLED_WIDTHS and not repeatable

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
        """The attention of the queries `rows` (all of them by default) over the tokens: B A R S.

        The weight of a point is distributed over the pixels around it. A row sums to less than 1 if points are in
        padding or outside of the map.
        """
        self._check(references, tokens, grids)
        if rows is not None:
            queries, references = queries[:, rows], references[:, rows]
        shares, locations, levels = self.shares(queries), self.locations(queries, references, grids), []
        for index, (height, width) in enumerate(grids):
            x, y = locations[:, :, :, index].unbind(-1)  # B R A P each
            down, right = linear_weights(y * height - 0.5, height), linear_weights(x * width - 0.5, width)
            share = shares[:, :, :, index].to(down)
            levels.append(torch.einsum("brap,braph,brapw->barhw", share, down, right).flatten(3))
        weights = torch.cat(levels, dim=3).to(shares.dtype)
        return weights if padding is None else weights.masked_fill(padding[:, None, None], 0.0)

    def contents(
        self,
        queries: Tensor,
        references: Tensor,
        tokens: Tensor,
        grids: Sequence[Grid],
        padding: Tensor | None = None,
    ) -> Tensor:
        """The values of the tokens: B A S d; `weights` times them is the input of `projection`."""
        values = self.value(tokens)
        if padding is not None:
            values = values.masked_fill(padding[..., None], 0.0)
        return values.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def shares(self, queries: Tensor) -> Tensor:
        """The attention weights of the points: B Q D -> B Q A L P, summing to 1 over all levels and points."""
        logits = self.attention(queries).unflatten(2, (self.num_heads, -1))  # B Q A LP
        return logits.softmax(dim=-1).unflatten(3, (self.levels, self.points))

    def locations(self, queries: Tensor, references: Tensor, grids: Sequence[Grid]) -> Tensor:
        """The sampling points (x, y), from 0 to 1 in each level: B Q D, B Q L 2 (or 4) -> B Q A L P 2, float32."""
        shape = (self.num_heads, self.levels, self.points, 2)
        exact = torch.promote_types(queries.dtype, torch.float32)  # bfloat16 would be off by whole pixels
        offsets = self.offsets(queries).unflatten(2, shape).to(exact)  # B Q A L P 2
        references = references.to(exact)[:, :, None, :, None]  # B Q 1 L 1 2 or 4
        if references.shape[-1] == 2:
            sizes = torch.tensor([(columns, rows) for rows, columns in grids], dtype=exact)
            # Without blocking: otherwise the CPU would wait for all that the GPU still has to do.
            return references + offsets / sizes.to(offsets.device, non_blocking=True)[:, None]
        return references[..., :2] + offsets * (references[..., 2:] / (2 * self.points))

    def _check(self, references: Tensor, tokens: Tensor, grids: Sequence[Grid]) -> None:
        if len(grids) != self.levels or references.shape[2] != self.levels:
            raise InputError(
                f"expected {self.levels} levels; got {len(grids)} grids and references for {references.shape[2]} levels"
            )
        if references.shape[-1] not in (2, 4):
            raise InputError(f"references have {references.shape[-1]} values; allowed: 2 (points) or 4 (boxes)")
        if sum(_sizes(grids)) != tokens.shape[1]:
            raise InputError(f"grids {list(grids)} need {sum(_sizes(grids))} tokens; got {tokens.shape[1]}")


def sampled(values: Tensor, points: Tensor, shares: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Bilinear samples of the values, weighted and summed: B A S d, B Q A L P 2, B Q A L P -> B Q A d."""
    heads = values.shape[1]
    values = values.transpose(2, 3).flatten(0, 1)  # BA d S
    points = points.transpose(1, 2).flatten(0, 1)  # BA Q L P 2
    read = [
        # Here -1 and 1 are the edges of the map; outside of it values are zero.
        F.grid_sample(level.unflatten(2, grid).to(points.dtype), 2 * points[:, :, index] - 1, align_corners=False)
        for index, (level, grid) in enumerate(zip(values.split(_sizes(grids), dim=2), grids, strict=True))
    ]
    found = torch.cat(read, dim=-1).to(values.dtype)  # BA d Q LP
    mixed = torch.einsum("bdqp,bqp->bqd", found, shares.flatten(3).transpose(1, 2).flatten(0, 1))
    return mixed.unflatten(0, (-1, heads)).transpose(1, 2)  # B A Q d -> B Q A d


def _sizes(grids: Sequence[Grid]) -> list[int]:
    return [rows * columns for rows, columns in grids]
