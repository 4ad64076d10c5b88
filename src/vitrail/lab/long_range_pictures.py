"""Labelled whose class depends on parts that are far apart: halves of objects to count, and a hidden core."""

import torch
from torch import Tensor

from vitrail.lab.small_training import Labelled

_CELL = 4  # pixels: marks are 4 x 4
_NOISE = 0.1
_MARKS = ("#### #... #... ####", "#### ...# ...# ####", ".##. #..# #..# .##.", "#..# .##. .##. #..#")  # [ ] o x


def marks(device: torch.device) -> Tensor:
    """The four marks, 4 4 4: a left half, a right half, a ring, a cross."""
    rows = [[[float(pixel == "#") for pixel in row] for row in mark.split()] for mark in _MARKS]
    return torch.tensor(rows, device=device)


def paired_halves(count: int, distance: int, *, side: int = 8, device: torch.device) -> Labelled:
    """Rows with a left half, a right half `distance` cells further, or both: the class is how many rows have both.

    A picture has side x side cells. Half of its rows have a left half and half of them a right half, whatever the
    class (0 to side / 2): the number of halves says nothing, only which of them share a row. An object starts in any
    column in which both halves fit, another one for each row.
    """
    half = side // 2
    labels = torch.randint(half + 1, (count,), device=device)
    order = torch.rand(count, side, device=device).argsort(dim=1)  # rows, shuffled
    left = torch.zeros(count, side, dtype=torch.bool, device=device).scatter_(1, order[:, :half], value=True)
    rank = order.argsort(dim=1)  # place of each row in the order
    right = (rank >= (half - labels)[:, None]) & (rank < (side - labels)[:, None])
    start = torch.randint(side - distance, (count, side), device=device)
    cells = torch.zeros(count, side, side, dtype=torch.long, device=device)  # B rows columns
    cells.scatter_(2, start[..., None], left[..., None].long())
    cells.scatter_add_(2, (start + distance)[..., None], 2 * right[..., None].long())
    return Labelled(_painted(cells), labels)


def hidden_core(count: int, distance: int, *, hidden: float, side: int = 8, device: torch.device) -> Labelled:
    """A core that shows the class, and two marks `distance` cells apart that are equal (class 1) or differ (0).

    In a share of the pictures the core is hidden by noise: then only the two marks together tell the class, since
    each alone is a ring or a cross with equal chance.
    """
    labels = torch.randint(2, (count,), device=device)
    first = torch.randint(2, (count,), device=device)
    second = torch.where(labels == 1, first, 1 - first)
    rows = torch.arange(count, device=device)
    y = torch.randint(side, (count,), device=device)
    x = torch.randint(side - distance, (count,), device=device)
    cells = torch.zeros(count, side, side, dtype=torch.long, device=device)
    cells[rows, y, x] = 3 + first
    cells[rows, y, x + distance] = 3 + second
    seen = torch.rand(count, device=device) >= hidden
    cells[rows, y, x + distance // 2] = torch.where(seen, 1 + labels, 0)
    return Labelled(_painted(cells), labels)


def _painted(cells: Tensor) -> Tensor:
    """Cells B h w with the number of a mark, or 0 for none -> noisy images B 1 H W from 0 to 1."""
    count, height, width = cells.shape
    blank = torch.zeros(1, _CELL, _CELL, device=cells.device)
    shown = torch.cat([blank, marks(cells.device)])[cells]  # B h w 4 4
    images = shown.permute(0, 1, 3, 2, 4).reshape(count, 1, height * _CELL, width * _CELL)
    return (0.2 + 0.6 * images + _NOISE * torch.randn_like(images)).clamp(0, 1)
