"""Operators with Triton kernels for NVIDIA GPUs. Layers call them if `suits` is true, and PyTorch's operators if not.

They are registered with shapes and gradients, so that torch.compile keeps them in one graph. The modules with the
kernels are imported on the first call: without Triton, nothing imports them.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.layers.fp8 import Fp8Linear, FrozenFp8Linear, Rows
from vitrail.layers.patch import Grid

MEASURED = (9, 0)  # compute capability on which the kernels were measured to be faster
LARGE = 1 << 22  # elements: for fewer, launching the kernel takes longer than GELU
WIDTHS = (16, 32, 64)  # sizes of a head
SAMPLED_WIDTHS: tuple[int, ...] = (8, 32, 64)  # sizes of a head that samples points: those that were checked on a GPU
DROPOUT = True  # whether kernels that apply dropout are used
NORMED = 2048  # the widest tokens whose residual connections and norms share a kernel; 0: none do
# Whether the tokens between blocks that use that kernel have 16 bits. It is faster; whole trainings were not compared.
STREAM = False
SHORT = 80  # tokens: with more, the fused attention of PyTorch has the faster forward pass
_INSTALLED = torch.version.cuda is not None and find_spec("triton") is not None

_DROPOUT = "Tensor? seed=None, float rate=0.0"
torch.library.define("vitrail::bias_gelu", f"(Tensor x, Tensor bias, {_DROPOUT}) -> Tensor")
torch.library.define(
    "vitrail::bias_gelu_backward", f"(Tensor grad, Tensor x, Tensor bias, {_DROPOUT}) -> (Tensor, Tensor)"
)
torch.library.define("vitrail::bias_gelu_rows", "(Tensor x, Tensor bias, bool keep) -> (Tensor, Tensor, Tensor)")
_WINDOWS = f"Tensor qkv, Tensor? bias, int heads, SymInt[] grid, SymInt[] size, SymInt[] shift, float scale, {_DROPOUT}"
torch.library.define("vitrail::window_attention", f"({_WINDOWS}) -> Tensor")
torch.library.define("vitrail::window_attention_backward", f"(Tensor grad, {_WINDOWS}) -> (Tensor, Tensor)")

_LEVELS = "Tensor values, Tensor points, Tensor shares, SymInt[] rows, SymInt[] columns"
torch.library.define("vitrail::sample_levels", f"({_LEVELS}) -> Tensor")
torch.library.define("vitrail::sample_levels_backward", f"(Tensor grad, {_LEVELS}) -> (Tensor, Tensor, Tensor)")

_NORM = "Tensor bias, Tensor? gain, Tensor? keep, Tensor weight"
torch.library.define(
    "vitrail::add_norm", f"(Tensor x, Tensor branch, {_NORM}, Tensor norm_bias, float eps) -> (Tensor, Tensor, Tensor)"
)
torch.library.define(
    "vitrail::add_norm_backward",
    "(Tensor? grad, Tensor grad_normed, Tensor added, Tensor statistics, Tensor? branch, "
    f"{_NORM}) -> (Tensor, Tensor, Tensor)",
)


def suits(x: Tensor) -> bool:
    """Whether the kernels can take the output of a linear layer for this input: 16 bits, on a GPU as measured."""
    if not (_INSTALLED and x.is_cuda) or exporting():
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype in (torch.bfloat16, torch.float16) and _new_enough(x.device.index)


def exporting() -> bool:
    """Whether torch.export is running: exported programs must not need these operators."""
    # In torch 2.11, is_exporting is also true inside torch.compile.
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def plain(linear: nn.Module) -> bool:
    """Whether a layer is a linear map without hooks or changes: its weight and bias can be used without calling it."""
    return (
        type(linear) in (nn.Linear, Fp8Linear, FrozenFp8Linear)
        and not linear._forward_hooks
        and not linear._forward_pre_hooks
    )


def unhooked(module: nn.Module) -> bool:
    """Whether calls of a module are its forward method and nothing else, so that others can do what it does.

    A module that is compiled by itself is to be called.
    """
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooks and module._compiled_call_impl is None and "forward" not in vars(module)


def _new_enough(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= MEASURED


if _INSTALLED:  # elsewhere never called; this imports the compiler, which takes more than a second
    _new_enough = torch.compiler.assume_constant_result(_new_enough)


def bias_gelu(x: Tensor, bias: Tensor, dropout: float = 0.0) -> Tensor:
    """Exact GELU of x + bias, then dropout: ... H and H -> ... H."""
    return torch.ops.vitrail.bias_gelu(x, bias, *_random(x, dropout))


def bias_gelu_rows(x: Tensor, bias: Tensor) -> tuple[Tensor, Rows]:
    """Exact GELU of x + bias, and its rows in 8 bits: ... H and H -> ... H, empty where no gradients are wanted."""
    out, values, scale = torch.ops.vitrail.bias_gelu_rows(x, bias, torch.is_grad_enabled())
    return out, Rows(values, scale)


def _random(x: Tensor, dropout: float) -> tuple[Tensor, float] | tuple[()]:
    """A seed for a kernel, from the generator of the device, and the share that is dropped; nothing for none."""
    return (torch.randint(1 << 31, (1,), dtype=torch.int32, device=x.device), dropout) if dropout > 0 else ()


def window_attention(
    qkv: Tensor, bias: Tensor | None, *, num_heads: int, grid: Grid, size: Grid, shift: Grid, scale: float,
    dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Softmax attention within windows; their size divides the grid: B N 3Ad and A w w -> B N Ad.

    In shifted windows, patches from opposite edges of the grid do not attend to each other. Dropout is of the weights.
    """
    return torch.ops.vitrail.window_attention(qkv, bias, num_heads, grid, size, shift, scale, *_random(qkv, dropout))


def sample_levels(values: Tensor, points: Tensor, shares: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Bilinear samples of the values of L levels, weighted and summed: B S A d, B Q A L P 2, B Q A L P -> B Q A d.

    Points (x, y) are from 0 to 1 over each level, values outside of it zero. The gradient of the values differs in its
    last bits from run to run.
    """
    rows, columns = [one for one, _ in grids], [one for _, one in grids]
    return torch.ops.vitrail.sample_levels(values, points, shares, rows, columns)


def add_norm(
    x: Tensor, branch: Tensor, bias: Tensor, norm: nn.LayerNorm, *, gain: Tensor | None = None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum x + keep gain (branch + bias), in the type of x, and its norm, in that of the branch: B ... D each.

    Bias and gain (LayerScale) D; keep (DropPath) B.
    """
    given = x, branch, bias, gain, keep, norm.weight, norm.bias, norm.eps
    added, normed, _ = torch.ops.vitrail.add_norm(*given)
    return added, normed


@torch.library.impl("vitrail::bias_gelu", "CUDA")
def _bias_gelu(x: Tensor, bias: Tensor, seed: Tensor | None = None, rate: float = 0.0) -> Tensor:
    from vitrail.layers import triton_gelu  # noqa: PLC0415

    return triton_gelu.forward(x.contiguous(), bias, seed, rate)


@torch.library.impl("vitrail::bias_gelu_backward", "CUDA")
def _bias_gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor, seed: Tensor | None = None, rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    from vitrail.layers import triton_gelu  # noqa: PLC0415

    return triton_gelu.backward(grad.contiguous(), x.contiguous(), bias, seed, rate)


@torch.library.impl("vitrail::bias_gelu_rows", "CUDA")
def _bias_gelu_rows(x: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    from vitrail.layers import triton_rows  # noqa: PLC0415

    return triton_rows.gelu_rows(x.contiguous(), bias, keep=keep)


@torch.library.impl("vitrail::window_attention", "CUDA")
def _window_attention(  # noqa: PLR0917
    qkv: Tensor, bias: Tensor | None, heads: int, grid: Any, size: Any, shift: Any, scale: float,
    seed: Tensor | None = None, rate: float = 0.0,
) -> Tensor:  # fmt: skip
    from vitrail.layers import triton_windows as kernels  # noqa: PLC0415

    bias = None if bias is None else bias.contiguous()
    dropout = None if seed is None else kernels.Dropout(seed, rate)
    return kernels.forward(qkv.contiguous(), bias, heads, kernels.Windows(grid, size, shift), scale, dropout)


@torch.library.impl("vitrail::window_attention_backward", "CUDA")
def _window_attention_backward(  # noqa: PLR0917
    grad: Tensor, qkv: Tensor, bias: Tensor | None, heads: int, grid: Any, size: Any, shift: Any, scale: float,
    seed: Tensor | None = None, rate: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from vitrail.layers import triton_windows as kernels  # noqa: PLC0415

    bias = None if bias is None else bias.contiguous()
    windows, dropout = kernels.Windows(grid, size, shift), None if seed is None else kernels.Dropout(seed, rate)
    return kernels.backward(grad.contiguous(), qkv.contiguous(), bias, heads, windows, scale, dropout)


@torch.library.impl("vitrail::sample_levels", "CUDA")
def _sample_levels(values: Tensor, points: Tensor, shares: Tensor, rows: Any, columns: Any) -> Tensor:
    from vitrail.layers import triton_deformable  # noqa: PLC0415

    given = values.contiguous(), points.contiguous(), shares.contiguous()
    return triton_deformable.forward(*given, list(zip(rows, columns, strict=True)))


@torch.library.impl("vitrail::sample_levels_backward", "CUDA")
def _sample_levels_backward(  # noqa: PLR0917
    grad: Tensor, values: Tensor, points: Tensor, shares: Tensor, rows: Any, columns: Any
) -> tuple[Tensor, Tensor, Tensor]:
    from vitrail.layers import triton_deformable  # noqa: PLC0415

    given = grad.contiguous(), values.contiguous(), points.contiguous(), shares.contiguous()
    return triton_deformable.backward(*given, list(zip(rows, columns, strict=True)))


@torch.library.impl("vitrail::add_norm", "CUDA")
def _add_norm(x: Tensor, branch: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    from vitrail.layers import triton_norm  # noqa: PLC0415

    return triton_norm.forward(x.contiguous(), branch.contiguous(), *given)


@torch.library.impl("vitrail::add_norm_backward", "CUDA")
def _add_norm_backward(  # noqa: PLR0917
    grad: Tensor | None, grad_normed: Tensor, added: Tensor, statistics: Tensor, branch: Tensor | None, bias: Tensor,
    gain: Tensor | None, keep: Tensor | None, weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from vitrail.layers import triton_norm  # noqa: PLC0415

    grad, branch = (None if one is None else one.contiguous() for one in (grad, branch))
    given = grad, grad_normed.contiguous(), added, statistics, branch, bias, gain, keep, weight
    return triton_norm.backward(*given, shared=same_gradients(added, grad_normed, gain, keep))


@torch.library.register_fake("vitrail::bias_gelu")  # type: ignore[untyped-decorator]
def _bias_gelu_shape(x: Tensor, bias: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("vitrail::bias_gelu_backward")  # type: ignore[untyped-decorator]
def _bias_gelu_backward_shape(grad: Tensor, x: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(bias)


@torch.library.register_fake("vitrail::bias_gelu_rows")  # type: ignore[untyped-decorator]
def _bias_gelu_rows_shape(x: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if keep else (0,)),
        x.new_empty(x.shape, dtype=torch.float8_e4m3fn),
        x.new_empty(*x.shape[:-1], 1, dtype=torch.float32),
    )


@torch.library.register_fake("vitrail::window_attention")  # type: ignore[untyped-decorator]
def _window_attention_shape(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3)


@torch.library.register_fake("vitrail::window_attention_backward")  # type: ignore[untyped-decorator]
def _window_attention_backward_shape(grad: Tensor, qkv: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    shape = (0,) if bias is None else bias.shape
    return qkv.new_empty(qkv.shape), qkv.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("vitrail::sample_levels")  # type: ignore[untyped-decorator]
def _sample_levels_shape(values: Tensor, points: Tensor, *_: Any) -> Tensor:
    return values.new_empty(*points.shape[:3], values.shape[3])


@torch.library.register_fake("vitrail::sample_levels_backward")  # type: ignore[untyped-decorator]
def _sample_levels_backward_shape(
    grad: Tensor, values: Tensor, points: Tensor, shares: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return values.new_empty(values.shape), points.new_empty(points.shape), shares.new_empty(shares.shape)


@torch.library.register_fake("vitrail::add_norm")  # type: ignore[untyped-decorator]
def _add_norm_shape(x: Tensor, branch: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    statistics = x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)
    return x.new_empty(x.shape), branch.new_empty(branch.shape), statistics


@torch.library.register_fake("vitrail::add_norm_backward")  # type: ignore[untyped-decorator]
def _add_norm_backward_shape(  # noqa: PLR0917
    grad: Tensor | None, grad_normed: Tensor, added: Tensor, statistics: Tensor, branch: Tensor | None, bias: Tensor,
    gain: Tensor | None, keep: Tensor | None, weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape = (0,) if same_gradients(added, grad_normed, gain, keep) else grad_normed.shape
    sums = added.new_empty(3 if gain is None else 4, added.shape[-1], dtype=torch.float32)
    return added.new_empty(added.shape), grad_normed.new_empty(shape), sums


def same_gradients(x: Tensor, branch: Tensor, gain: Tensor | None, keep: Tensor | None) -> bool:
    """Whether `add_norm` has the same numbers as gradients of x and of the branch; the second is then left empty."""
    return gain is None and keep is None and x.dtype == branch.dtype


def _keep_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, seed, ctx.rate = inputs
    ctx.save_for_backward(x, bias, seed)


def _gelu_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias, seed = ctx.saved_tensors
    return *torch.ops.vitrail.bias_gelu_backward(grad, x, bias, *_again(seed, ctx.rate)), None, None


def _keep_gelu_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, bias, _ = inputs
    ctx.save_for_backward(x, bias)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gelu_rows_gradient(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    return *torch.ops.vitrail.bias_gelu_backward(grad, *ctx.saved_tensors), None


def _again(seed: Tensor | None, rate: float) -> tuple[Tensor, float] | tuple[()]:
    """The same random numbers as in the forward pass, or none."""
    return () if seed is None else (seed, rate)


def _keep_windows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv, bias, *ctx.options, seed, ctx.rate = inputs
    ctx.save_for_backward(qkv, bias, seed)


def _windows_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    qkv, bias, seed = ctx.saved_tensors
    random = _again(seed, ctx.rate)
    grad_qkv, grad_bias = torch.ops.vitrail.window_attention_backward(grad, qkv, bias, *ctx.options, *random)
    return grad_qkv, None if bias is None else grad_bias.to(bias.dtype), *[None] * 7


def _keep_levels(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, points, shares, *ctx.sizes = inputs
    ctx.save_for_backward(values, points, shares)


def _levels_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.vitrail.sample_levels_backward(grad, *ctx.saved_tensors, *ctx.sizes), None, None


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, branch, bias, gain, keep, weight, norm_bias, _ = inputs
    added, normed, statistics = output
    ctx.kind = normed.dtype
    ctx.kinds = bias.dtype, weight.dtype, norm_bias.dtype, bias.dtype if gain is None else gain.dtype
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(added, statistics, None if gain is None else branch, bias, gain, keep, weight)


def _norm_gradient(ctx: Any, grad: Tensor | None, grad_normed: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    added, statistics, branch, bias, gain, keep, weight = ctx.saved_tensors
    if grad_normed is None:  # what follows the norm is not part of the loss
        grad_normed = torch.zeros_like(added, dtype=ctx.kind)
    given = grad, grad_normed, added, statistics, branch, bias, gain, keep, weight
    of_x, of_branch, sums = torch.ops.vitrail.add_norm_backward(*given)
    if same_gradients(added, grad_normed, gain, keep):
        of_branch = of_x
    of_bias, of_weight, of_norm_bias, *of_gain = (one.to(kind) for one, kind in zip(sums, ctx.kinds, strict=False))
    return of_x, of_branch, of_bias, of_gain[0] if of_gain else None, None, of_weight, of_norm_bias, None


torch.library.register_autograd("vitrail::bias_gelu", _gelu_gradient, setup_context=_keep_gelu)
torch.library.register_autograd("vitrail::bias_gelu_rows", _gelu_rows_gradient, setup_context=_keep_gelu_rows)
torch.library.register_autograd("vitrail::window_attention", _windows_gradient, setup_context=_keep_windows)
torch.library.register_autograd("vitrail::sample_levels", _levels_gradient, setup_context=_keep_levels)
torch.library.register_autograd("vitrail::add_norm", _norm_gradient, setup_context=_keep_norm)
