"""Cases of `kernel_checks.py` for the kernel that adds a residual branch and normalises the sum."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.layers import kernels

SHAPES = ((16, 197, 768), (16, 197, 384), (64, 65, 192), (2, 33, 1024), (3, 7, 40), (1, 1, 512))  # B N D
SIZES = ((256, 197, 768), (512, 197, 384), (1024, 65, 192))  # ViT-B/16, ViT-S/16 and the ViT for 32 px
TUNINGS = (  # rows, warps and programs on each multiprocessor, where the tile of a row is 1024 columns wide
    (1, 2, 8), (1, 2, 12), (1, 4, 4), (1, 4, 6), (1, 4, 8), (1, 8, 2), (1, 8, 4), (2, 4, 4), (2, 8, 4),
)  # fmt: skip
EPS = 1e-6
DEVICE = "cuda"
Way = Callable[..., tuple[Tensor, Tensor]]


def inputs(
    shape: Sequence[int], dtype: torch.dtype, stream: torch.dtype, *, scaled: bool
) -> tuple[list[Tensor], Tensor | None, tuple[Tensor, Tensor]]:
    """x, branch, bias, weight, norm_bias and, if `scaled`, gain; keep; the gradients of the sum and of its norm."""
    x, of_sum = (torch.randn(*shape, device=DEVICE).to(stream) for _ in range(2))
    branch, of_norm = (torch.randn(*shape, device=DEVICE).to(dtype) for _ in range(2))
    parameters = torch.randn(4 if scaled else 3, shape[-1], device=DEVICE).unbind()
    keep = (torch.rand(shape[0], device=DEVICE) < 0.7) / 0.7 if scaled else None
    return [x, branch, *parameters], keep, (of_sum, of_norm)


def plain(x: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor, *gain: Tensor,
          keep: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The operators that the kernel replaces; the norm has the type of the branch."""
    kind = branch.dtype
    branch = branch + bias.to(kind)
    for one in gain:
        branch = branch * one
    if keep is not None:
        branch = branch * keep[:, None, None].to(branch.dtype)
    added = (x + branch).to(x.dtype)
    return added, F.layer_norm(added.to(weight.dtype), added.shape[-1:], weight, norm_bias, EPS).to(kind)


def fused(x: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor, *gain: Tensor,
          keep: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    norm: Any = SimpleNamespace(weight=weight, bias=norm_bias, eps=EPS)
    return kernels.add_norm(x, branch, bias, norm, gain=gain[0] if gain else None, keep=keep)


def results(way: Way, given: Sequence[Tensor], keep: Tensor | None, grads: Sequence[Tensor]) -> list[Tensor]:
    """The sum, its norm, and the gradient of each input."""
    leaves = [one.detach().requires_grad_() for one in given]
    found = way(*leaves, keep=keep)
    of_inputs = torch.autograd.grad(found, leaves, [one.to(two.dtype) for one, two in zip(grads, found, strict=True)])
    return [*(one.detach() for one in found), *of_inputs]


def compared(
    shape: Sequence[int], dtype: torch.dtype, stream: torch.dtype, *, scaled: bool
) -> tuple[list[Tensor], list[Tensor], bool]:
    """What the kernel finds, what float64 says, and whether a second run gives the same bits."""
    given, keep, grads = inputs(shape, dtype, stream, scaled=scaled)
    found, again = (results(fused, given, keep, grads) for _ in range(2))
    exact = None if keep is None else keep.double()
    expected = results(plain, [one.double() for one in given], exact, grads)
    return found, expected, all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def passes(
    way: Way, shape: Sequence[int], stream: torch.dtype
) -> list[tuple[str, Callable[[], object], int]]:  # fmt: skip
    """Forward and backward pass without gain and keep: their names, what runs them, and their fewest bytes."""
    given, _, grads = inputs(shape, torch.bfloat16, stream, scaled=False)
    leaves = [one.requires_grad_() for one in given]
    found = way(*leaves)
    of_x, of_branch = (one.numel() * one.element_size() for one in leaves[:2])
    shared = stream == torch.bfloat16  # the gradients of x and of the branch are one tensor

    def forward() -> object:
        with torch.no_grad():
            return way(*leaves)

    backward = partial(torch.autograd.grad, found, leaves, grads, retain_graph=True)
    read_and_written = 3 * of_x + (1 if shared else 2) * of_branch
    return [("forward", forward, 2 * of_x + 2 * of_branch), ("backward", backward, read_and_written)]


def launched(tuning: tuple[int, int, int] | None, width: int) -> None:
    """Launches both kernels so, with as many rows more as the tile of a row is narrower; None: as they are."""
    from vitrail.layers import triton_norm as module

    if tuning is None:
        return
    columns = 1 << max(width - 1, 255).bit_length()
    rows, warps, programs = tuning
    module.FORWARD[columns] = module.BACKWARD[columns] = module.Tuning(rows * 1024 // columns, warps, programs)
