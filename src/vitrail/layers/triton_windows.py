# mypy: ignore-errors
# ruff: noqa: N803, PLR0917  (a kernel has as many arguments as it reads; constants of a kernel are in capitals)
"""Triton kernels for softmax attention within small windows of a grid, with bias and mask, and its backward pass.

A program processes windows of one head in a loop and keeps the bias of the head in registers. Tokens are read and
written in the order of the grid; the shift of the windows is part of the addresses. Softmax is computed in float32.
Dropout of the weights follows from a seed and the place of a weight, so that no mask is stored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.patch import Grid
from vitrail.layers.triton_jit import jit, kept, processors, threshold, tl, triton

LOG2E = 1.4426950408889634
CHANGING = ("items", "rows", "columns", "down", "right", "dropped")


class Tuning(NamedTuple):
    """How a kernel is launched: warps of a program, programs on each multiprocessor, stages of its loop."""

    warps: int
    programs: int
    stages: int


FORWARD = {64: Tuning(4, 3, 3), 128: Tuning(4, 2, 1)}  # by the places of a tile
BACKWARD = {64: Tuning(4, 2, 3), 128: Tuning(4, 2, 1)}


@jit()
def place(item, slot, rows, columns, down, right, P: tl.constexpr, Q: tl.constexpr):
    """The tokens of a window, counted over the batch, and their sides of the shift's edges."""
    across = columns // Q
    windows = (rows // P) * across
    image, window = item // windows, item % windows
    y = (window // across) * P + slot // Q
    x = (window % across) * Q + slot % Q
    side = 2 * (y >= rows - down).to(tl.int32) + (x >= columns - right).to(tl.int32)
    y += down
    x += right
    y = tl.where(y >= rows, y - rows, y)
    x = tl.where(x >= columns, x - columns, x)
    return (image * rows * columns + y * columns + x).to(tl.int64), side


@jit()
def bias_of(bias, head, slot, factor, W: tl.constexpr):
    """The bias of a head, for exponentials of base 2: A w w -> S S."""
    real = (slot < W)[:, None] & (slot < W)[None, :]
    return tl.load(bias + head * W * W + slot[:, None] * W + slot[None, :], mask=real, other=0.0) * factor


@jit()
def softmax(q, k, bias, side, seen, factor, SHIFTED: tl.constexpr, DOT: tl.constexpr):
    """Powers of two of the logits, not yet divided by their sums, and the sums: S d each -> S S and S."""
    logits = tl.dot(q, tl.trans(k), input_precision=DOT) * factor + bias
    if SHIFTED:
        logits = tl.where(seen[None, :] & (side[:, None] == side[None, :]), logits, -1.0e30)
    else:
        logits = tl.where(seen[None, :], logits, -1.0e30)
    powers = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return powers, tl.sum(powers, 1)


@jit()
def stays(seed, item, head, slot, dropped, S: tl.constexpr):
    """Which weights of a window and head dropout keeps: S S."""
    at = (item * tl.num_programs(1) + head) * (S * S)
    return kept(tl.load(seed), at + slot[:, None] * S + slot[None, :], dropped)


@jit(*CHANGING)
def forward_kernel(
    qkv, bias, out, seed, items, rows, columns, down, right, inner, factor, scale, dropped, rescale,
    P: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, SHIFTED: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The programs (p, head): out[token, head] for all windows p, p + programs, ..."""
    head = tl.program_id(1)
    slot, channel = tl.arange(0, S), tl.arange(0, D)
    real = (slot < P * Q)[:, None]
    added = bias_of(bias, head, slot, factor / scale, P * Q) if BIASED else 0.0
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=STAGES):
        token, side = place(item, slot, rows, columns, down, right, P, Q)
        at = qkv + token[:, None] * (3 * inner) + head * D + channel[None, :]
        q = tl.load(at, mask=real, other=0.0)
        k = tl.load(at + inner, mask=real, other=0.0)
        v = tl.load(at + 2 * inner, mask=real, other=0.0)
        powers, total = softmax(q, k, added, side, slot < P * Q, factor, SHIFTED, DOT)
        if DROP:
            powers = tl.where(stays(seed, item, head, slot, dropped, S), powers * rescale, 0.0)
        mixed = tl.dot(powers.to(v.dtype), v, input_precision=DOT) / total[:, None]
        tl.store(out + token[:, None] * inner + head * D + channel[None, :], mixed.to(out.dtype.element_ty), mask=real)


@jit(*CHANGING)
def backward_kernel(
    qkv, bias, grad, grad_qkv, grad_bias, seed, items, rows, columns, down, right, inner, factor, scale, dropped,
    rescale,
    P: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, SHIFTED: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The programs (p, head): grad_qkv[token, :, head], and grad_bias[p, head], the sum over the program's windows."""
    summed = tl.zeros([S, S], tl.float32)
    slot, channel, head = tl.arange(0, S), tl.arange(0, D), tl.program_id(1)
    added = bias_of(bias, head, slot, factor / scale, P * Q) if BIASED else 0.0
    real = (slot < P * Q)[:, None]
    for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=STAGES):
        token, side = place(item, slot, rows, columns, down, right, P, Q)
        where = token[:, None] * (3 * inner) + head * D + channel[None, :]
        q = tl.load(qkv + where, mask=real, other=0.0)
        k = tl.load(qkv + where + inner, mask=real, other=0.0)
        v = tl.load(qkv + where + 2 * inner, mask=real, other=0.0)
        g = tl.load(grad + token[:, None] * inner + head * D + channel[None, :], mask=real, other=0.0)
        powers, total = softmax(q, k, added, side, slot < P * Q, factor, SHIFTED, DOT)
        weights = powers / total[:, None]
        grad_weights = tl.dot(g, tl.trans(v), input_precision=DOT)
        used = weights
        if DROP:
            stay = stays(seed, item, head, slot, dropped, S)
            used = tl.where(stay, weights * rescale, 0.0)
            grad_weights = tl.where(stay, grad_weights * rescale, 0.0)
        grad_v = tl.dot(tl.trans(used.to(g.dtype)), g, input_precision=DOT)
        tl.store(grad_qkv + where + 2 * inner, grad_v.to(v.dtype), mask=real)
        grad_logits = weights * (grad_weights - tl.sum(weights * grad_weights, 1)[:, None])
        if BIASED:
            summed += grad_logits
        scaled = (grad_logits * scale).to(q.dtype)
        tl.store(grad_qkv + where, tl.dot(scaled, k, input_precision=DOT).to(q.dtype), mask=real)
        grad_k = tl.dot(tl.trans(scaled), q, input_precision=DOT)
        tl.store(grad_qkv + where + inner, grad_k.to(q.dtype), mask=real)
    if BIASED:
        at = (tl.program_id(0) * tl.num_programs(1) + head) * (P * Q * P * Q)
        pairs = slot[:, None] * (P * Q) + slot[None, :]
        tl.store(grad_bias + at + pairs, summed, mask=real & (slot < P * Q)[None, :])


class Dropout(NamedTuple):
    """What is dropped: the seed, 1 int32 on the device, and the share of the weights."""

    seed: Tensor
    rate: float


class Windows(NamedTuple):
    """The grid of patches, the size of a window that fills it, and the shift."""

    grid: Grid
    size: Grid
    shift: Grid


def forward(
    qkv: Tensor, bias: Tensor | None, heads: int, windows: Windows, scale: float, dropout: Dropout | None = None
) -> Tensor:
    """softmax(q k scale + bias) v within windows: B N 3Ad and A w w -> B N Ad."""
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    tuning = FORWARD[max(_tile(windows), 64)]
    programs = _programs(qkv, heads, windows, tuning)
    _launch(forward_kernel, (qkv, bias, out), scale, heads, windows, programs, tuning, dropout)
    return out


def backward(
    grad: Tensor, qkv: Tensor, bias: Tensor | None, heads: int, windows: Windows, scale: float,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of the packed queries, keys and values, B N 3Ad, and of the bias, A w w (empty without one)."""
    grad_qkv = torch.empty_like(qkv)
    tuning = BACKWARD[max(_tile(windows), 64)]
    programs = _programs(qkv, heads, windows, tuning)
    grad_bias = qkv.new_empty(programs, *(() if bias is None else bias.shape), dtype=torch.float32)
    tensors = (qkv, bias, grad, grad_qkv, grad_bias)
    _launch(backward_kernel, tensors, scale, heads, windows, programs, tuning, dropout)
    return grad_qkv, grad_bias.sum(0) if bias is not None else grad_bias[:0]


def _programs(qkv: Tensor, heads: int, windows: Windows, tuning: Tuning) -> int:
    """Programs for each head: as many as the GPU holds at once, or one for each window."""
    return max(1, min(_items(qkv, windows), processors(qkv.device) * tuning.programs // heads))


def _tile(windows: Windows) -> int:
    """Places of a tile, a power of two: those of a window, then some that hold nothing."""
    return max(triton.next_power_of_2(windows.size[0] * windows.size[1]), 16)


def _items(qkv: Tensor, windows: Windows) -> int:
    """Windows in the batch."""
    (rows, columns), (height, width), _ = windows
    return qkv.shape[0] * (rows // height) * (columns // width)


def _launch(
    kernel, tensors, scale: float, heads: int, windows: Windows, programs: int, tuning: Tuning, dropout: Dropout | None
) -> None:
    (qkv, bias, *others), (grid, size, shift) = tensors, windows
    inner, (seed, rate) = qkv.shape[2] // 3, dropout or Dropout(qkv, 0.0)
    kernel[(programs, heads)](
        qkv, qkv if bias is None else bias, *others, seed, _items(qkv, windows), *grid, *shift, inner, scale * LOG2E,
        scale, threshold(rate), 1 / (1 - rate),
        P=size[0], Q=size[1], S=_tile(windows), D=inner // heads,
        BIASED=bias is not None, SHIFTED=tuple(shift) != (0, 0), DOT="ieee" if qkv.dtype == torch.float32 else "tf32",
        STAGES=tuning.stages, DROP=dropout is not None, num_warps=tuning.warps,
    )  # fmt: skip
