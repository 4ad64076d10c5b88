"""Sine positions of DETR: of the cells of a map, and of boxes."""

import math

import torch
from torch import Tensor

from vitrail.layers.patch import Grid

_TEMPERATURE = 10000.0


def sine_position(grid: Grid, dim: int, *, like: Tensor, shift: float = 0.0, counts: Tensor | None = None) -> Tensor:
    """The position of each cell, its row and column scaled to 0 ... 2 pi: N D (DETR, arXiv:2005.12872).

    The first half of D is the row, the second the column; `like` gives the device and type. Cells are counted from 1,
    less `shift`: with 0.5 the positions are those of their centres, as in Deformable DETR. In a padded batch `counts`,
    B 2, are how many columns and rows belong to each image, which are scaled instead: B N D.
    """
    first = 1 - shift
    counted = [torch.arange(count, device=like.device, dtype=like.dtype) + first for count in grid]
    if counts is None:
        shares = [cells / (count + 1e-6) for cells, count in zip(counted, grid, strict=True)]
    else:
        shares = [cells / (counts[:, 1 - axis, None].to(like) + 1e-6) for axis, cells in enumerate(counted)]  # B h, B w
    rows, columns = (_waves(share, dim // 2) for share in shares)  # ... h D/2, ... w D/2
    height, width = grid
    both = [rows.unsqueeze(-2).expand(*rows.shape[:-1], width, -1), columns.unsqueeze(-3)]
    both[1] = both[1].expand(*columns.shape[:-2], height, width, -1)
    return torch.cat(both, dim=-1).flatten(-3, -2)  # ... h w D -> ... N D


def box_position(boxes: Tensor, dim: int) -> Tensor:
    """Centre and size, each from 0 to 1, as waves: B Q 4 -> B Q 4 dim (Deformable DETR, arXiv:2010.04159)."""
    return _waves(boxes, dim).flatten(2)


def _waves(shares: Tensor, dim: int) -> Tensor:
    """Numbers from 0 to 1 as sines and cosines in turn: ... -> ... dim."""
    index = torch.arange(dim, device=shares.device, dtype=shares.dtype)
    period = _TEMPERATURE ** (2 * (index // 2) / dim)
    angles = shares[..., None] * (2 * math.pi) / period  # ... dim
    return torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], dim=-1).flatten(-2)
