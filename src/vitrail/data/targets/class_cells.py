"""Cells of tables that hold class names, or zeros and ones."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.data.targets.target import Column

LIST = re.compile(r"""\[[0-9\s.,]*\] | [\[({] \s* ['"] .* ['"] ,? \s* [\])}]""", re.VERBOSE | re.DOTALL)
_ZEROS, _ONES = ("0", "0.0", "false"), ("1", "1.0", "true")


def cell_text(column: Column, row: int, cell: Any) -> str:
    """A class name: a text that is not empty, or an integer from 0."""
    if isinstance(cell, bool) or not isinstance(cell, str | int) or str(cell) == "":
        raise column.error(row, f"{cell!r} is not a valid label; a label is a text that is not empty")
    if re.fullmatch(r"-[0-9]+", str(cell)):
        raise column.error(row, f"{cell} is not a valid label; class numbers start at 0")
    return str(cell)


def one_hot_columns(columns: Sequence[Column]) -> list[Column]:
    """All columns, if every cell is 0 or 1; otherwise none."""
    binary = all(str(cell).lower() in (*_ZEROS, *_ONES) for column in columns for cell in column.cells)
    return list(columns) if binary else []


def one_hot_marks(columns: Sequence[Column]) -> Tensor:
    """Zeros and ones N K; DataError for any other cell."""
    rows = range(len(columns[0].cells))
    return torch.tensor([[_mark(column, row) for column in columns] for row in rows])


def _mark(column: Column, row: int) -> float:
    cell = str(column.cells[row]).lower()
    if cell not in (*_ZEROS, *_ONES):
        raise column.error(row, f"{column.cells[row]!r} is not 0 or 1; columns of one class each hold only 0 and 1")
    return float(cell in _ONES)
