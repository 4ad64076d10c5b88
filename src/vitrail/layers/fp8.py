"""Linear layers whose products are computed in 8 bits (Micikevicius et al. 2022, arXiv:2209.05433), row by row.

Each token and each output channel of the weights is rounded to e4m3 with a scale of its own, that of its largest number
of the moment: nothing has to be remembered from step to step, weights keep their names and types, and a resumed run
stays exact. Sums are in float32. In training, the gradient of the tokens is such a product, too; that of the weights is
a product in 16 bits, as it sums over all tokens. For inference, `freeze` rounds the weights once.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import Unsupported

TARGETS = ("qkv", "projection", "fc1", "fc2")  # the linear maps of blocks
MULTIPLE = 16  # of both widths: what the products take
KIND = torch.float8_e4m3fn
TOP = torch.finfo(KIND).max
LEAST = 1e-30  # the largest number of a row of zeros, as it were
_INSTALLED = torch.version.cuda is not None and find_spec("triton") is not None

M = TypeVar("M", bound=nn.Module)


class Rows(NamedTuple):
    """Numbers in 8 bits, ... D, row by row in memory, and the scale of each row, ... 1 in float32, a factor."""

    values: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """... D: the largest number of each row uses the whole range."""
        if _INSTALLED and values.is_cuda and not torch.compiler.is_compiling():
            from vitrail.layers import triton_rows  # noqa: PLC0415

            return cls(*triton_rows.rows_of(values.detach().contiguous()))
        # Compiled, these operators become part of the kernel that writes the values, where that can be. Rounding to the
        # nearest cannot leave the range, and what is not finite stays so.
        exact = values.detach().float()
        largest = exact.abs().amax(dim=-1, keepdim=True).clamp(min=LEAST)
        small = (exact * (TOP / largest)).to(KIND, memory_format=torch.contiguous_format)
        return cls(small, largest / TOP)

    def flat(self) -> Self:
        """M D and M 1."""
        return type(self)(self.values.flatten(0, -2), self.scale.flatten(0, -2))

    def times(self, other: "Rows", dtype: torch.dtype, bias: Tensor | None = None, *, fast: bool = True) -> Tensor:
        """X W^T + b of rows M D and E D, and a bias E: M E; `fast` keeps partial sums in fewer bits.

        The error measured is the same: that of rounding the factors.
        """
        return torch._scaled_mm(
            self.values, other.values.t(), scale_a=self.scale, scale_b=other.scale.view(1, -1),
            bias=None if bias is None else bias.to(dtype), out_dtype=dtype, use_fast_accum=fast,
        )  # fmt: skip


class Fp8Linear(nn.Linear):
    """x W^T + b with products in 8 bits, ... D -> ... E, where the widths allow it and the output is bfloat16."""

    @classmethod
    def of(cls, linear: nn.Linear) -> "Fp8Linear":
        """A layer with the weights of another one."""
        new = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        new.weight, new.bias = linear.weight, linear.bias
        return new.train(linear.training)

    def forward(self, tokens: Tensor) -> Tensor:
        """... D -> ... E."""
        return self.of_rows(*in_rows(tokens), self.bias) if self.fits(tokens) else super().forward(tokens)

    def fits(self, tokens: Tensor) -> bool:
        """Whether the product of these tokens can be computed in 8 bits."""
        return _result(tokens) == torch.bfloat16 and _whole(self)

    def of_rows(self, tokens: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """X W^T + b of tokens and of their rows in 8 bits; without gradients, of the tokens the type alone is read."""
        flat = rows.flat()
        if tokens.shape == rows.values.shape:
            tokens = tokens.flatten(0, -2)
        product: Tensor = _Product.apply(tokens, *flat, self.weight, bias)  # type: ignore[no-untyped-call]
        return product.unflatten(0, rows.values.shape[:-1])


class _Product(torch.autograd.Function):
    """M D with its rows in 8 bits, E D and E -> M E."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, tokens: Tensor, values: Tensor, scale: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        ctx.bias = None if bias is None else bias.dtype
        return Rows(values, scale).times(Rows.of(weight), tokens.dtype, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight = ctx.saved_tensors
        (grad,) = grads
        # A scale for each token and each input channel: the factors of a sum must have one scale.
        wants_tokens, _, _, wants_weight, wants_bias = ctx.needs_input_grad
        of_tokens = Rows.of(grad).times(Rows.of(weight.t()), tokens.dtype) if wants_tokens else None  # M E, D E -> M D
        of_weight = (grad.t() @ tokens).to(weight.dtype) if wants_weight else None  # E M, M D -> E D
        return of_tokens, None, None, of_weight, grad.sum(dim=0, dtype=ctx.bias) if wants_bias else None


class FrozenFp8Linear(nn.Module):
    """x W^T + b for inference, ... D -> ... E: the weights are rounded once, the tokens in every pass."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        rows = Rows.of(linear.weight)
        self.register_buffer("weight", rows.values)
        self.register_buffer("scale", rows.scale)
        bias: Tensor | None = linear.bias
        self.register_buffer("bias", None if bias is None else bias.detach().to(torch.bfloat16))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves to devices keep the types: weights in 8 bits and their scales would be lost in another one."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor.new_empty(0)).device), recurse)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor) -> Tensor:
        """... D -> ... E."""
        return self.of_rows(tokens, Rows.of(tokens), self.bias)

    def of_rows(self, tokens: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """X W^T + b of the rows of tokens in 8 bits; of the tokens the type alone is read."""
        if tokens.requires_grad and torch.is_grad_enabled():
            raise Unsupported("layers with rounded weights have no gradients; use the model that they were made from")
        product = rows.flat().times(Rows(self.weight, self.scale), torch.bfloat16, bias)
        return product.unflatten(0, rows.values.shape[:-1])


def use_fp8(model: M) -> M:
    """Lets the linear maps of blocks, those with the names `TARGETS`, compute in 8 bits, in place."""
    for path, linear in _targets(model).items():
        model.set_submodule(path, Fp8Linear.of(linear))
    return model


def freeze(model: M) -> M:
    """For inference, in place: linear maps of blocks in 8 bits where their widths allow it, all else in bfloat16."""
    frozen = {path: FrozenFp8Linear(linear) for path, linear in _targets(model).items() if _whole(linear)}
    model.to(torch.bfloat16)
    for path, layer in frozen.items():
        model.set_submodule(path, layer)
    return model.eval()


def without_bias(linear: nn.Module, tokens: Tensor, rows: Rows | None = None) -> Tensor:
    """X W^T of a linear layer without hooks, for kernels that add the bias themselves; `rows` as in `multiplied`."""
    if takes_rows(linear, tokens):
        return linear.of_rows(*in_rows(tokens, rows))  # type: ignore[operator]
    return F.linear(tokens, linear.weight)  # type: ignore[arg-type]


def with_bias(linear: nn.Module, tokens: Tensor, bias: Tensor) -> Tensor:
    """X W^T + b of a linear layer without hooks, for kernels that compute the gradient of the bias themselves."""
    if takes_rows(linear, tokens):
        return linear.of_rows(*in_rows(tokens), bias)  # type: ignore[operator]
    return F.linear(tokens, linear.weight, bias)  # type: ignore[arg-type]


def multiplied(linear: nn.Module, tokens: Tensor, rows: Rows | None) -> Tensor:
    """The output of a linear layer; `rows` are the tokens in 8 bits, where a kernel wrote them and it takes them."""
    return linear(tokens) if rows is None else linear.of_rows(tokens, rows, linear.bias)  # type: ignore[operator]


def in_rows(tokens: Tensor, rows: Rows | None = None) -> tuple[Tensor, Rows]:
    """Tokens in the type of a product with them, and the same in 8 bits."""
    tokens = tokens.to(_result(tokens))
    return tokens, Rows.of(tokens) if rows is None else rows


def takes_rows(linear: nn.Module, tokens: Tensor) -> bool:
    """Whether a layer computes its product with what such tokens become in 8 bits."""
    return isinstance(linear, FrozenFp8Linear) or (isinstance(linear, Fp8Linear) and linear.fits(tokens))


def _targets(model: nn.Module) -> dict[str, nn.Linear]:
    """By path; Unsupported where there are none."""
    found = {
        path: module for path, module in model.named_modules()
        if type(module) in (nn.Linear, Fp8Linear) and _in_block(path.split("."))
    }  # fmt: skip
    if not any(_whole(linear) for linear in found.values()):
        raise Unsupported(
            f"precision 'fp8' changes nothing here: {type(model).__name__} has no plain linear layers in its blocks, "
            "or low-rank updates (lora) stand in their place; use 'bf16'"
        )
    return found


def _in_block(path: Sequence[str]) -> bool:
    """Whether a path ends in a linear map of a block, and not of a head, of pooling or of relative positions."""
    return path[-1] in TARGETS and path[0] not in ("head", "pool") and "relative" not in path


def _whole(linear: nn.Linear) -> bool:
    return not linear.in_features % MULTIPLE and not linear.out_features % MULTIPLE


def _result(tokens: Tensor) -> torch.dtype:
    """The type of a product with tokens."""
    kind = tokens.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
