# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""Triton kernels for GELU(x + bias): the forward pass, and the backward pass with the gradient of the bias.

Both can apply dropout: which numbers are dropped follows from a seed and their place, so that no mask is stored.

The normal distribution function is a fit: its absolute error is below 2e-6 and its relative error below 8e-6 for
x > -5, far less than the rounding of bfloat16 and float16, with half the instructions of erf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.triton_jit import jit, kept, processors, threshold, tl, triton


class Tuning(NamedTuple):
    """How a kernel is launched: rows and columns of a tile, warps of a program, programs on each multiprocessor."""

    rows: int
    columns: int
    warps: int
    programs: int


FORWARD, BACKWARD = Tuning(8, 512, 4, 8), Tuning(2, 512, 4, 16)  # the fastest on an H200


@jit()
def normal(x):
    """The normal distribution at x: 2 to the power of a polynomial, fitted to the logarithm of its tail."""
    a = tl.abs(x)
    power = -0.0009051403030753136 + a * (5.852242247783579e-05 - a * 1.6884422393559362e-06)
    power = -0.458690345287323 + a * (-0.053739193826913834 + a * (0.008403737097978592 + a * power))
    tail = tl.exp2(a * (-1.15116286277771 + a * power) - 1.0)
    return tl.where(x < 0, tail, 1.0 - tail)


@jit("rows", "dropped")
def forward_kernel(
    x, bias, out, seed, rows, width, dropped, scale, M: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr
):  # fmt: skip
    """The programs (p, j): columns j of the rows p, p + programs, ..., M by N at a time."""
    column = tl.program_id(1) * N + tl.arange(0, N)
    shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = (block * M + tl.arange(0, M)).to(tl.int64)
        at = row[:, None] * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift
        value *= normal(value)
        if DROP:
            value = tl.where(kept(tl.load(seed), at, dropped), value * scale, 0.0)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@jit("rows", "dropped")
def backward_kernel(
    grad, x, bias, grad_x, grad_bias, seed, rows, width, dropped, scale,
    M: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """As in the forward pass; grad_bias[p] is the sum over the program's rows."""
    column = tl.program_id(1) * N + tl.arange(0, N)
    shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    summed = tl.zeros([M, N], tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, M), tl.num_programs(0)):
        row = (block * M + tl.arange(0, M)).to(tl.int64)
        at = row[:, None] * width + column[None, :]
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift
        arrived = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            arrived = tl.where(kept(tl.load(seed), at, dropped), arrived * scale, 0.0)
        passed = arrived * (normal(value) + value * (0.39894228 * tl.exp2(-0.72134752 * value * value)))
        summed += passed
        tl.store(grad_x + at, passed.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(grad_bias + tl.program_id(0) * width + column, tl.sum(summed, 0), mask=column < width)


def forward(x: Tensor, bias: Tensor, seed: Tensor | None = None, rate: float = 0.0) -> Tensor:
    """gelu(x + bias): ... H and H -> ... H; with a seed, 1 int32, a share of it is dropped and the rest rescaled."""
    out = torch.empty_like(x)
    grid, tile = _grid(x, FORWARD)
    forward_kernel[grid](x, bias, out, *_random(x, seed, rate), **tile, DROP=seed is not None)
    return out


def backward(
    grad: Tensor, x: Tensor, bias: Tensor, seed: Tensor | None = None, rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The gradients of x, ... H, and of the bias, H."""
    grad_x = torch.empty_like(x)
    grid, tile = _grid(x, BACKWARD)
    grad_bias = x.new_empty(grid[0], x.shape[-1], dtype=torch.float32)
    random = _random(x, seed, rate)
    backward_kernel[grid](grad, x, bias, grad_x, grad_bias, *random, **tile, DROP=seed is not None)
    return grad_x, grad_bias.sum(0).to(bias.dtype)


def _random(x: Tensor, seed: Tensor | None, rate: float) -> tuple[Tensor, int, int, int, float]:
    """The arguments that say how large x is, and what is dropped."""
    width = x.shape[-1]
    return x if seed is None else seed, x.numel() // width, width, threshold(rate), 1 / (1 - rate)


def _grid(x: Tensor, tuning: Tuning) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs along rows and columns, and the tile; its columns divide a row where a power of two does."""
    width, columns = x.shape[-1], tuning.columns
    while columns > 128 and width % columns:
        columns //= 2
    rows = tuning.rows * tuning.columns // columns
    across = triton.cdiv(width, columns)
    down = max(1, min(triton.cdiv(x.numel() // width, rows), processors(x.device) * tuning.programs // across))
    return (down, across), {"M": rows, "N": columns, "num_warps": tuning.warps}
