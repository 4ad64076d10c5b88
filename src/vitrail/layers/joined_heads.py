"""Queries, keys and values whose gradients are joined, and summed for the bias, by one kernel for NVIDIA GPUs."""

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.layers import kernels
from vitrail.layers.fp8 import with_bias

JOINED = False  # whether the kernel is used: not until it has been measured

torch.library.define("vitrail::join_heads", "(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")


def joins(linear: nn.Linear, tokens: Tensor) -> bool:
    """Whether the kernel is used for a linear layer with a bias: where gradients are wanted, of many numbers."""
    fits = JOINED and torch.is_grad_enabled() and kernels.suits(tokens) and kernels.plain(linear)
    return fits and tokens.numel() >= kernels.LARGE  # sizes last: a graph may leave them open


def split_heads(linear: nn.Linear, tokens: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a `plain` linear layer with a bias: B N D -> B A N d each.

    As the operators of PyTorch; but the backward pass joins their gradients and sums them for the bias at once.
    """
    qkv = with_bias(linear, tokens, linear.bias.detach())
    q, k, v = _Split.apply(qkv, linear.bias, num_heads)  # type: ignore[no-untyped-call]
    return q, k, v


class _Split(torch.autograd.Function):
    """B N 3Ad, to which the bias 3Ad has been added -> B A N d, three times."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, num_heads: int) -> tuple[Tensor, ...]:
        ctx.dtype = bias.dtype
        return tuple(part.unflatten(2, (num_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        joined, summed = torch.ops.vitrail.join_heads(*grads)
        return joined, summed.to(ctx.dtype), None


@torch.library.impl("vitrail::join_heads", "CUDA")
def _join_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    from vitrail.layers import triton_join  # noqa: PLC0415

    return triton_join.join_heads(q, k, v)


@torch.library.register_fake("vitrail::join_heads")  # type: ignore[untyped-decorator]
def _join_heads_shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, width = q.shape
    inner = 3 * heads * width
    return q.new_empty(batch, tokens, inner), q.new_empty(inner, dtype=torch.float32)
