"""Labelled images whose class depends on parts that are far apart: halves of objects to count, and a hidden core."""

from typing import Literal

import torch
from torch import Tensor

from vitrail.lab.small_training import Labelled

_CELL = 4  # pixels: marks are 4 x 4
_NOISE = 0.1
MARKS = _CELL**2 - 1

Match = Literal["mark", "row"]


def marks(device: torch.device) -> Tensor:
    """Fifteen marks, 15 4 4, of ones and zeros: half of the pixels of each are bright, and any two share half of these.

    They are the rows of a Hadamard matrix but the first.
    """
    numbers = torch.arange(MARKS + 1, device=device)
    both = numbers[1:, None] & numbers
    odd = torch.stack([(both >> bit) & 1 for bit in range(4)]).sum(dim=0) % 2
    return odd.float().view(MARKS, _CELL, _CELL)


def paired_halves(count: int, distance: int, match: Match, *, side: int, device: torch.device) -> Labelled:
    """Rows with a left half, a right half `distance` cells further, or both: the class is how many rows have both.

    A picture has side x side cells. Half of its rows have a left half and half of them a right half, whatever the
    class (0 to side / 2): the number of halves says nothing, only which of them belong together. With `match` "mark",
    the two halves of a row have the same mark, another one for each row; with "row", all left halves have one mark and
    all right halves another. An object starts in any column in which both halves fit.
    """
    half = side // 2
    classes = torch.randint(half + 1, (count,), device=device)
    order = torch.rand(count, side, device=device).argsort(dim=1)  # rows, shuffled
    left = torch.zeros(count, side, dtype=torch.bool, device=device).scatter_(1, order[:, :half], value=True)
    rank = order.argsort(dim=1)  # place of each row in the order
    right = (rank >= (half - classes)[:, None]) & (rank < (side - classes)[:, None])
    start = torch.randint(side - distance, (count, side), device=device)
    kinds = torch.rand(count, min(2 * side, MARKS), device=device).argsort(dim=1)[:, :side] + 1
    first, second = (kinds, kinds) if match == "mark" else (torch.ones_like(kinds), torch.full_like(kinds, 2))
    cells = torch.zeros(count, side, side, dtype=torch.long, device=device)  # B rows columns
    cells.scatter_(2, start[..., None], (left * first)[..., None])
    cells.scatter_add_(2, (start + distance)[..., None], (right * second)[..., None])
    return Labelled(_painted(cells), classes)


def hidden_core(count: int, distance: int, *, hidden: float, side: int, device: torch.device) -> Labelled:
    """A core that shows the class, and two marks `distance` cells apart that are equal (class 1) or differ (0).

    In a share of the pictures the core is hidden: then only the two marks together tell the class, since each alone is
    one of two with equal chance.
    """
    classes = torch.randint(2, (count,), device=device)
    first = torch.randint(2, (count,), device=device)
    second = torch.where(classes == 1, first, 1 - first)
    rows = torch.arange(count, device=device)
    y = torch.randint(side, (count,), device=device)
    x = torch.randint(side - distance, (count,), device=device)
    cells = torch.zeros(count, side, side, dtype=torch.long, device=device)
    cells[rows, y, x] = 3 + first
    cells[rows, y, x + distance] = 3 + second
    seen = torch.rand(count, device=device) >= hidden
    cells[rows, y, x + distance // 2] = torch.where(seen, 1 + classes, 0)
    return Labelled(_painted(cells), classes)


def _painted(cells: Tensor) -> Tensor:
    """Cells B h w with the number of a mark, or 0 for none -> noisy images B 1 H W from 0 to 1."""
    count, height, width = cells.shape
    blank = torch.zeros(1, _CELL, _CELL, device=cells.device)
    shown = torch.cat([blank, marks(cells.device)])[cells]  # B h w 4 4
    images = shown.permute(0, 1, 3, 2, 4).reshape(count, 1, height * _CELL, width * _CELL)
    return (0.2 + 0.6 * images + _NOISE * torch.randn_like(images)).clamp(0, 1)
