# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""Triton kernels for multi-scale deformable attention: bilinear samples of all levels, weighted and summed in one pass.

A program processes some queries of one head of one image. Sums are computed in float32. The gradients of values are
added up by atomic operations, in any order: their last bits differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.patch import Grid
from vitrail.layers.triton_jit import jit, tl, triton

CHANGING = ("queries", "tokens")


class Tuning(NamedTuple):
    """How a kernel is launched: elements of a tile (queries times the size of a head), warps of a program."""

    elements: int
    warps: int


FORWARD, BACKWARD = Tuning(512, 2), Tuning(512, 2)


@jit()
def corner(x, y, width, height, at, stride, real):
    """Where the pixel (x, y) of a level is read, and whether it is inside of the map: M each."""
    inside = real & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return at + (y * width + x) * stride, inside


@jit()
def around(points, shares, point, width, height, real):
    """The top left of the four pixels around a point, how far the point is from it, and its share: M each."""
    share = tl.load(shares + point, mask=real, other=0.0).to(tl.float32)
    x = tl.load(points + 2 * point, mask=real, other=-1.0) * width - 0.5
    y = tl.load(points + 2 * point + 1, mask=real, other=-1.0) * height - 0.5
    near = (x >= -1) & (x < width) & (y >= -1) & (y < height)  # False for NaN
    x = tl.where(near, x, -2.0)  # no pixel around it is in the map
    y = tl.where(near, y, -2.0)
    left, top = tl.floor(x), tl.floor(y)
    return left.to(tl.int32), top.to(tl.int32), x - left, y - top, share


@jit()
def read(values, where, inside, channel):
    """The values of a head at some pixels, zero outside of the map: M d, float32."""
    return tl.load(values + where[:, None] + channel[None, :], mask=inside[:, None], other=0.0).to(tl.float32)


@jit(*CHANGING)
def forward_kernel(
    values, points, shares, out, queries, tokens, rows, columns,
    A: tl.constexpr, L: tl.constexpr, P: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The programs (block, head, image): out[query, head] of M queries."""
    head, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    query, channel = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    real = query < queries
    row = (image * queries + query) * A + head  # of queries and heads, over the batch
    values += image * tokens * (A * D) + head * D
    points += row * (2 * L * P)
    shares += row * (L * P)
    summed = tl.zeros([M, D], tl.float32)
    start = 0
    for level in tl.static_range(L):
        height, width = rows[level] // 2, columns[level] // 2
        for index in tl.static_range(P):
            point = level * P + index
            left, top, x, y, share = around(points, shares, point, width, height, real)
            for step in tl.static_range(4):
                across, down = step % 2, step // 2
                where, inside = corner(left + across, top + down, width, height, start * (A * D), A * D, real)
                part = (x if across else 1 - x) * (y if down else 1 - y)
                summed += (share * part)[:, None] * read(values, where, inside, channel)
        start += height * width
    at = row[:, None] * D + channel[None, :]
    tl.store(out + at, summed.to(out.dtype.element_ty), mask=real[:, None])


@jit(*CHANGING)
def backward_kernel(
    grad, values, points, shares, grad_values, grad_points, grad_shares, queries, tokens, rows, columns,
    A: tl.constexpr, L: tl.constexpr, P: tl.constexpr, M: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """As in the forward pass: the gradients of the points and shares of M queries; those of values are added."""
    head, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    # Reads as wide as the atomic additions: with other widths, each has its own layout, and addresses are made twice.
    query, channel = tl.program_id(0) * M + tl.arange(0, M), tl.max_contiguous(tl.arange(0, D), 4)
    real = query < queries
    row = (image * queries + query) * A + head
    g = tl.load(grad + row[:, None] * D + channel[None, :], mask=real[:, None], other=0.0).to(tl.float32)
    values += image * tokens * (A * D) + head * D
    grad_values += image * tokens * (A * D) + head * D
    points += row * (2 * L * P)
    shares += row * (L * P)
    column = tl.arange(0, W)[None, :]  # of points, some of which do not exist
    grad_share = tl.zeros([M, W], tl.float32)
    grad_x = tl.zeros([M, W], tl.float32)
    grad_y = tl.zeros([M, W], tl.float32)
    start = 0
    for level in tl.static_range(L):
        height, width = rows[level] // 2, columns[level] // 2
        for index in tl.static_range(P):
            point = level * P + index
            left, top, x, y, share = around(points, shares, point, width, height, real)
            along_share = tl.zeros([M], tl.float32)
            along_x = tl.zeros([M], tl.float32)
            along_y = tl.zeros([M], tl.float32)
            for step in tl.static_range(4):
                across, down = step % 2, step // 2
                where, inside = corner(left + across, top + down, width, height, start * (A * D), A * D, real)
                beside, below = x if across else 1 - x, y if down else 1 - y
                product = tl.sum(g * read(values, where, inside, channel), 1)  # of the output's gradient and the pixel
                along_share += beside * below * product
                along_x += (below if across else -below) * product
                along_y += (beside if down else -beside) * product
                added = (share * beside * below)[:, None] * g
                at = grad_values + where[:, None] + channel[None, :]
                tl.atomic_add(at, added, mask=inside[:, None], sem="relaxed")
            grad_share = tl.where(column == point, along_share[:, None], grad_share)
            grad_x = tl.where(column == point, (along_x * share * width)[:, None], grad_x)
            grad_y = tl.where(column == point, (along_y * share * height)[:, None], grad_y)
        start += height * width
    at = row[:, None] * (L * P) + column
    kept = real[:, None] & (column < L * P)
    tl.store(grad_shares + at, grad_share.to(grad_shares.dtype.element_ty), mask=kept)
    tl.store(grad_points + 2 * at, grad_x, mask=kept)
    tl.store(grad_points + 2 * at + 1, grad_y, mask=kept)


def forward(values: Tensor, points: Tensor, shares: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Samples of the values at the points, weighted: B S A d, B Q A L P 2, B Q A L P -> B Q A d."""
    out = values.new_empty(*points.shape[:3], values.shape[3])
    _launch(forward_kernel, (values, points, shares, out), values, shares, grids, FORWARD)
    return out


def backward(
    grad: Tensor, values: Tensor, points: Tensor, shares: Tensor, grids: Sequence[Grid]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the values, added up in float32, of the points and of the shares."""
    grad_values = torch.zeros_like(values, dtype=torch.float32)
    grad_points, grad_shares = torch.empty_like(points), torch.empty_like(shares)
    tensors = (grad, values, points, shares, grad_values, grad_points, grad_shares)
    columns = triton.next_power_of_2(shares.shape[3] * shares.shape[4])
    _launch(backward_kernel, tensors, values, shares, grids, BACKWARD, W=columns)
    return grad_values.to(values.dtype), grad_points, grad_shares


def _launch(kernel, tensors, values: Tensor, shares: Tensor, grids: Sequence[Grid], tuning: Tuning, **more) -> None:
    (batch, queries, heads, levels, points), width = shares.shape, values.shape[3]
    block = max(tuning.elements // width, 1)
    kernel[(triton.cdiv(queries, block), heads, batch)](
        *tensors, queries, values.shape[1], _odd(rows for rows, _ in grids), _odd(columns for _, columns in grids),
        A=heads, L=levels, P=points, M=block, D=width, num_warps=tuning.warps, **more,
    )  # fmt: skip


def _odd(sizes: Iterable[int]) -> tuple[int, ...]:
    """2n + 1 of each: for numbers of a tuple that are 1 or divisible by 16, Triton would compile a kernel anew."""
    return tuple(2 * size + 1 for size in sizes)
