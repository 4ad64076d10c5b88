# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""A Triton kernel for the backward pass of heads: gradients of queries, keys and values side by side, and their sum.

The sum over all tokens is the gradient of the bias. Joined by one kernel and summed by another, all is read twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.triton_jit import jit, processors, tl, triton


class Tuning(NamedTuple):
    """How the kernel is launched: rows and columns of a tile, warps of a program, programs on each multiprocessor."""

    rows: int
    columns: int
    warps: int
    programs: int


TUNING = Tuning(8, 256, 4, 8)


@jit("rows")
def join_kernel(q, k, v, joined, sums, rows, width, M: tl.constexpr, N: tl.constexpr):
    """The programs (p, j, s): columns j of the rows p, p + programs, ..., M by N at a time, of q, k or v."""
    column, which = tl.program_id(1) * N + tl.arange(0, N), tl.program_id(2)
    source = q if which == 0 else (k if which == 1 else v)
    summed = tl.zeros([M, N], tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = (block * M + tl.arange(0, M)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = tl.load(source + row[:, None] * width + column[None, :], mask=inside, other=0.0)
        tl.store(joined + row[:, None] * (3 * width) + (which * width + column)[None, :], value, mask=inside)
        summed += value.to(tl.float32)
    at = tl.program_id(0) * (3 * width) + which * width + column
    tl.store(sums + at, tl.sum(summed, 0), mask=column < width)


def join_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values, B A N d each -> B N 3Ad, and their sum over B and N, 3Ad in float32."""
    q, k, v = (part.transpose(1, 2).contiguous().flatten(2) for part in (q, k, v))  # B N Ad, mostly as they lie
    rows, width, tuning = q.shape[0] * q.shape[1], q.shape[2], TUNING
    across = triton.cdiv(width, tuning.columns)
    most = processors(q.device) * tuning.programs // (3 * across)
    down = max(1, min(triton.cdiv(rows, tuning.rows), most))
    joined = q.new_empty(*q.shape[:2], 3 * width)
    sums = q.new_empty(down, 3 * width, dtype=torch.float32)
    grid, tile = (down, across, 3), {"M": tuning.rows, "N": tuning.columns, "num_warps": tuning.warps}
    join_kernel[grid](q, k, v, joined, sums, rows, width, **tile)
    return joined, sums.sum(0)
