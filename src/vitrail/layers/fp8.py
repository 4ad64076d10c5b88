"""Linear layers whose products are computed in 8 bits (Micikevicius et al. 2022, arXiv:2209.05433).

Tokens and weights are rounded to e4m3, gradients to e5m2, each scaled by its largest number of the moment: nothing has
to be remembered from step to step, weights keep their names and types, and a resumed run stays exact. Sums are in
float32. The tokens are kept for the backward pass in 8 bits, half of the memory.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TARGETS = ("qkv", "projection", "fc1", "fc2")  # the linear maps of blocks
MULTIPLE = 16  # of both widths and of the number of tokens: what the products take
_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_LEAST = 1e-12  # the largest number of a tensor of zeros, as it were

M = TypeVar("M", bound=nn.Module)


class Fp8Linear(nn.Linear):
    """x W^T + b with products in 8 bits, ... D -> ... E, where the sizes allow it and the output has 16 bits."""

    @classmethod
    def of(cls, linear: nn.Linear) -> "Fp8Linear":
        """A layer with the weights of another one."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        return new.train(linear.training)

    def forward(self, tokens: Tensor) -> Tensor:
        """... D -> ... E."""
        dtype = torch.get_autocast_dtype(tokens.device.type) if _autocasts(tokens) else tokens.dtype
        if not self._fits(tokens, dtype):
            return super().forward(tokens)
        product = self.product(tokens.to(dtype))
        if self.bias is not None:
            product = product + self.bias.to(dtype)
        return product

    def product(self, tokens: Tensor) -> Tensor:
        """X W^T: ... D -> ... E, in the type of the tokens."""
        rows: Tensor = _Product.apply(tokens.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        return rows.unflatten(0, tokens.shape[:-1])

    def _fits(self, tokens: Tensor, dtype: torch.dtype) -> bool:
        sizes = tokens.numel() // tokens.shape[-1], self.in_features, self.out_features
        return dtype in (torch.bfloat16, torch.float16) and not any(size % MULTIPLE for size in sizes)


class _Product(torch.autograd.Function):
    """M D and E D -> M E."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        x, x_scale = rounded(tokens, _FORWARD)
        w, w_scale = rounded(weight, _FORWARD)
        ctx.save_for_backward(x, x_scale, w, w_scale)
        ctx.types = tokens.dtype, weight.dtype
        return torch._scaled_mm(x, w.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=tokens.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, x_scale, w, w_scale = ctx.saved_tensors
        of_tokens, of_weight = ctx.types
        g, g_scale = rounded(grads[0], _BACKWARD)
        # The second factor has to lie column by column in memory, the first row by row.
        grad_x = torch._scaled_mm(g, _columns(w), scale_a=g_scale, scale_b=w_scale, out_dtype=of_tokens)  # M E, E D
        grad_w = torch._scaled_mm(
            g.t().contiguous(), _columns(x), scale_a=g_scale, scale_b=x_scale, out_dtype=of_tokens
        )  # E M, M D
        return grad_x, grad_w.to(of_weight)


def rounded(values: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values in 8 bits, row by row in memory, and their scale, a factor; the largest one uses the whole range."""
    top = torch.finfo(kind).max
    scale = values.detach().abs().amax().float().clamp(min=_LEAST) / top
    small = (values / scale.to(values.dtype)).clamp(-top, top).to(kind)
    return small.contiguous(), scale.to(values.dtype).float()


def _columns(values: Tensor) -> Tensor:
    """The same matrix, column by column in memory."""
    return values.t().contiguous().t()


def _autocasts(tokens: Tensor) -> bool:
    return torch.is_autocast_enabled(tokens.device.type)


def use_fp8(model: M) -> M:
    """Lets the linear maps of blocks, those with the names `TARGETS`, compute in 8 bits, in place."""
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear and path.rpartition(".")[2] in TARGETS:
            model.set_submodule(path, Fp8Linear.of(module))
    return model


def without_bias(linear: nn.Linear, tokens: Tensor) -> Tensor:
    """X W^T of a linear layer without hooks, for kernels that add the bias themselves."""
    if isinstance(linear, Fp8Linear):
        dtype = torch.get_autocast_dtype(tokens.device.type) if _autocasts(tokens) else tokens.dtype
        if linear._fits(tokens, dtype):
            return linear.product(tokens.to(dtype))
    return F.linear(tokens, linear.weight)
