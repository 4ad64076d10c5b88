# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""Triton kernels that add a residual branch and normalise the sum: both passes, with the gradients of all parameters.

x_new = x + keep gain (branch + bias) and LayerNorm(x_new), where gain (LayerScale) and keep (DropPath) may be absent.
A row is read once in each pass. Means and deviations are kept: 8 bytes a row, for two sums over each row less.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.triton_jit import jit, processors, tl, triton


class Tuning(NamedTuple):
    """How a kernel is launched: rows of a tile, warps of a program, programs on each multiprocessor."""

    rows: int
    warps: int
    programs: int


# By the width of a row, rounded up to a power of two; wider rows are launched as the last.
FORWARD = {256: Tuning(4, 4, 8), 512: Tuning(2, 4, 8), 1024: Tuning(1, 4, 8), 2048: Tuning(1, 8, 4)}
BACKWARD = {256: Tuning(4, 4, 6), 512: Tuning(2, 4, 6), 1024: Tuning(1, 4, 6), 2048: Tuning(1, 8, 3)}
SCALED = 4  # programs at most in the backward pass with a gain, which needs twice the registers
CHANGING = ("rows", "tokens")


@jit()
def vector(source, column, width):
    """The parameter of each column: N float32, zero beyond the width."""
    return tl.load(source + column, mask=column < width, other=0.0).to(tl.float32)[None, :]


@jit()
def matrix(source, at, inside):
    """A tile: M N float32, zero outside."""
    return tl.load(source + at, mask=inside, other=0.0).to(tl.float32)


@jit(*CHANGING)
def forward_kernel(
    x, branch, bias, gain, keep, weight, norm_bias, added, normed, statistics, rows, width, tokens, eps,
    M: tl.constexpr, N: tl.constexpr, GAIN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The programs p: the rows p, p + programs, ..., M by N at a time."""
    # Four numbers to a thread, of 32 and of 16 bits alike: with eight of 16 bits, tiles would be laid out anew.
    column = tl.max_contiguous(tl.arange(0, N), 4)
    shift, slope, offset = vector(bias, column, width), vector(weight, column, width), vector(norm_bias, column, width)
    if GAIN:
        scale = vector(gain, column, width)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = block * M + tl.arange(0, M)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = matrix(branch, at, inside) + shift
        if GAIN:
            value *= scale
        if KEEP:
            value *= tl.load(keep + row // tokens, mask=row < rows, other=0.0)[:, None]
        stored = (matrix(x, at, inside) + value).to(added.dtype.element_ty)
        tl.store(added + at, stored, mask=inside)
        total = stored.to(tl.float32)  # what the backward pass will read
        mean = tl.sum(total, 1) / width
        centred = tl.where(inside, total - mean[:, None], 0.0)
        inverse = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
        result = centred * inverse[:, None] * slope + offset
        tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)
        tl.store(statistics + row, mean, mask=row < rows)
        tl.store(statistics + rows + row, inverse, mask=row < rows)


@jit(*CHANGING)
def backward_kernel(
    grad, grad_normed, added, statistics, branch, bias, gain, keep, weight, grad_x, grad_branch, sums,
    rows, width, tokens, M: tl.constexpr, N: tl.constexpr,
    GRAD: tl.constexpr, GAIN: tl.constexpr, KEEP: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """As in the forward pass; sums[p] are those over the program's rows for bias, weight, norm_bias and gain."""
    column = tl.max_contiguous(tl.arange(0, N), 4)
    slope = vector(weight, column, width)
    of_bias, of_weight = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    of_norm_bias = tl.zeros([M, N], tl.float32)
    if GAIN:
        shift, scale, of_gain = vector(bias, column, width), vector(gain, column, width), tl.zeros([M, N], tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = block * M + tl.arange(0, M)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        arrived, total = matrix(grad_normed, at, inside), matrix(added, at, inside)
        if GRAD:  # all is read before the first sum over rows: what is read later would wait for it
            beside = matrix(grad, at, inside)
        if GAIN:
            output = matrix(branch, at, inside)
        mean = tl.load(statistics + row, mask=row < rows, other=0.0)
        inverse = tl.load(statistics + rows + row, mask=row < rows, other=0.0)  # rows beyond the last add nothing
        unit = (total - mean[:, None]) * inverse[:, None]
        of_weight += arrived * unit
        of_norm_bias += arrived
        arrived *= slope
        along = (tl.sum(arrived * unit, 1) / width)[:, None]
        passed = (arrived - (tl.sum(arrived, 1) / width)[:, None] - unit * along) * inverse[:, None]
        if GRAD:
            passed += beside
        tl.store(grad_x + at, passed.to(grad_x.dtype.element_ty), mask=inside)
        if KEEP:
            passed *= tl.load(keep + row // tokens, mask=row < rows, other=0.0)[:, None]
        if GAIN:
            of_gain += passed * (output + shift)
            passed *= scale
        of_bias += passed
        if not SHARED:
            tl.store(grad_branch + at, passed.to(grad_branch.dtype.element_ty), mask=inside)
    sums += tl.program_id(0) * (4 if GAIN else 3) * width + column
    tl.store(sums, tl.sum(of_bias, 0), mask=column < width)
    tl.store(sums + width, tl.sum(of_weight, 0), mask=column < width)
    tl.store(sums + 2 * width, tl.sum(of_norm_bias, 0), mask=column < width)
    if GAIN:
        tl.store(sums + 3 * width, tl.sum(of_gain, 0), mask=column < width)


def forward(
    x: Tensor, branch: Tensor, bias: Tensor, gain: Tensor | None, keep: Tensor | None, weight: Tensor,
    norm_bias: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """B ... D each, parameters D, keep B -> x_new and its norm, B ... D; means and inverse deviations, 2 rows."""
    added, normed = torch.empty_like(x), torch.empty_like(branch)
    statistics = x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)
    grid, tile = _grid(x, FORWARD)
    given = x, branch, bias, _present(gain, x), _present(keep, x), weight, norm_bias
    options = {"GAIN": gain is not None, "KEEP": keep is not None}
    forward_kernel[grid](*given, added, normed, statistics, *_sizes(x, keep), eps, **tile, **options)
    return added, normed, statistics


def backward(
    grad: Tensor | None, grad_normed: Tensor, added: Tensor, statistics: Tensor, branch: Tensor | None, bias: Tensor,
    gain: Tensor | None, keep: Tensor | None, weight: Tensor, *, shared: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x and of the branch, B ... D, and of bias, weight, norm_bias (and gain), 3 or 4 D.

    Where those of x and of the branch are the same numbers, they can be `shared`: that of the branch is empty.
    """
    kinds = 3 if gain is None else 4
    grad_x = torch.empty_like(added)
    grad_branch = grad_normed.new_empty(0 if shared else grad_normed.shape)
    grid, tile = _grid(added, BACKWARD, most=None if gain is None else SCALED)
    sums = added.new_empty(grid[0], kinds, added.shape[-1], dtype=torch.float32)
    given = _present(grad, added), grad_normed, added, statistics, _present(branch, added), bias
    given = *given, _present(gain, added), _present(keep, added), weight
    options = {"GRAD": grad is not None, "GAIN": gain is not None, "KEEP": keep is not None, "SHARED": shared}
    backward_kernel[grid](*given, grad_x, grad_branch, sums, *_sizes(added, keep), **tile, **options)
    return grad_x, grad_branch, sums.sum(0)


def _present(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A tensor, or, as an argument that is not read, another one."""
    return other if tensor is None else tensor


def _sizes(x: Tensor, keep: Tensor | None) -> tuple[int, int, int]:
    """Rows, their width, and the rows of each sample."""
    width = x.shape[-1]
    rows = x.numel() // width
    return rows, width, rows if keep is None else rows // keep.numel()


def _grid(x: Tensor, tunings: dict[int, Tuning], most: int | None = None) -> tuple[tuple[int], dict[str, int]]:
    """The number of programs, and the tile: whole rows."""
    width = x.shape[-1]
    columns = max(triton.next_power_of_2(width), min(tunings))
    tuning = tunings[min(columns, max(tunings))]
    blocks = triton.cdiv(x.numel() // width, tuning.rows)
    programs = max(1, min(blocks, processors(x.device) * min(tuning.programs, most or tuning.programs)))
    return (programs,), {"M": tuning.rows, "N": columns, "num_warps": tuning.warps}
