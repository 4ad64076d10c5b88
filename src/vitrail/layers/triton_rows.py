# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""Triton kernels that write rows in 8 bits with a scale for each: of numbers as they are, or of GELU(x + bias).

A program holds whole rows, so that they are read once. The widths of MLPs are 3 times a power of two: a row is held in
two parts, the largest power of two and the rest, as a tile has as many columns as a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.layers.triton_gelu import normal
from vitrail.layers.triton_jit import jit, processors, tl, triton

LEAST, TOP = 1e-30, 448.0  # as in `fp8`: the largest number of a row of zeros, as it were, and of e4m3
ELEMENTS, PROGRAMS = 2048, 24  # of the first part of a tile; on each multiprocessor
WIDE = 2048  # columns from which a tile is one row


@jit()
def part(x, shift, row, column, rows, width, GELU: tl.constexpr):
    """Numbers of some rows and columns, or GELU of them and the bias, in float32: M N; zero outside."""
    inside = (row < rows)[:, None] & (column < width)[None, :]
    value = tl.load(x + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if GELU:
        value += shift[None, :]
        value *= normal(value)
    return value


@jit()
def write(value, factor, out, values, row, column, rows, width, KEEP: tl.constexpr):
    """The numbers in 8 bits, M N times a factor for each row M, and as they are where that is asked for."""
    inside = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    tl.store(values + at, (value * factor[:, None]).to(values.dtype.element_ty), mask=inside)
    if KEEP:
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@jit("rows")
def rows_kernel(
    x, bias, out, values, scales, rows, width, least, top,
    M: tl.constexpr, A: tl.constexpr, B: tl.constexpr, GELU: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The program p: the rows p, p + programs, ..., M at a time, in parts of A and B columns."""
    front = tl.arange(0, A)
    shift, rest, further = 0.0, front, 0.0
    if GELU:
        shift = tl.load(bias + front, mask=front < width, other=0.0).to(tl.float32)
    if B > 0:
        rest = A + tl.arange(0, B)
        if GELU:
            further = tl.load(bias + rest, mask=rest < width, other=0.0).to(tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = (block * M + tl.arange(0, M)).to(tl.int64)
        first = part(x, shift, row, front, rows, width, GELU)
        largest = tl.maximum(tl.max(tl.abs(first), 1), least)
        if B > 0:
            second = part(x, further, row, rest, rows, width, GELU)
            largest = tl.maximum(largest, tl.max(tl.abs(second), 1))
        factor = top / largest
        write(first, factor, out, values, row, front, rows, width, KEEP)
        if B > 0:
            write(second, factor, out, values, row, rest, rows, width, KEEP)
        tl.store(scales + row, largest / top, mask=row < rows)


def rows_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers in 8 bits and the scales of their rows: ... H -> ... H and ... 1."""
    _, values, scales = _launch(x, None, keep=False)
    return values, scales


def gelu_rows(x: Tensor, bias: Tensor, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """gelu(x + bias), ... H, empty unless it is to be kept; the same in 8 bits; and the scales of its rows, ... 1."""
    return _launch(x, bias, keep=keep)


def _launch(x: Tensor, bias: Tensor | None, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[-1]
    out = x.new_empty(x.shape if keep else (0,))
    values = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    scales = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    rows, tile = x.numel() // width, _tile(width)
    programs = max(1, min(triton.cdiv(rows, tile["M"]), processors(x.device) * PROGRAMS))
    options = {**tile, "GELU": bias is not None, "KEEP": keep, "num_warps": _warps(width, keep=keep)}
    rows_kernel[programs,](x, x if bias is None else bias, out, values, scales, rows, width, LEAST, TOP, **options)
    return out, values, scales


def _warps(width: int, *, keep: bool) -> int:
    """Warps of a program: the fastest with GELU on an H200."""
    if width >= WIDE:
        return 4 if keep else 2
    return 8 if keep else 4


def _tile(width: int) -> dict[str, int]:
    """Rows of a tile, and the columns of its two parts."""
    first = max(16, 1 << (width.bit_length() - 1))  # the largest power of two that is not above the width
    rest = width - first
    return {"M": max(1, ELEMENTS // first), "A": first, "B": triton.next_power_of_2(rest) if rest > 0 else 0}
