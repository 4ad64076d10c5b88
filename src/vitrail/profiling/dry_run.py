"""A forward pass on shapes only: nothing is computed or allocated, and every matrix product is counted."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


def storage_key(tensor: Tensor) -> int:
    """An id of a tensor's memory, the same for tensors that share it; valid while one of them exists."""
    return tensor.untyped_storage()._cdata


class Shapes(TorchDispatchMode):
    """Replaces every tensor by one without data (device "meta") and calls `on_macs` with the MACs of each product.

    Results are cached, since the shape functions of some operators take a millisecond of Python: all blocks of a model
    after the first are almost free.
    """

    def __init__(self, on_macs: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_macs = on_macs
        self._blanks: dict[int, tuple[Tensor, Tensor]] = {}  # the first tensor is kept so that its id is not reused
        self._known: dict[Any, list[Layout]] = {}

    def blank(self, tensor: Tensor) -> Tensor:
        """A tensor of the same shape without data; always the same one for the same tensor."""
        if tensor.is_meta:
            return tensor
        if id(tensor) not in self._blanks:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            self._blanks[id(tensor)] = (tensor, empty)
        return self._blanks[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self._blanked(args), {name: self._blanked(value) for name, value in (kwargs or {}).items()}
        given: list[Tensor] = []
        key = (func, _key(args, given), tuple(kwargs), _key(kwargs.values(), given))
        if (layouts := self._known.get(key)) is not None:
            made = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in layouts]
            result = made[0] if len(made) == 1 else tuple(made)
        else:
            result = func(*args, **kwargs)
            self._remember(key, given, result)
        if (product := _PRODUCTS.get(func)) is not None:
            self.on_macs(product(*args, result))
        return result

    def _blanked(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.blank(value)
        return type(value)(map(self._blanked, value)) if isinstance(value, list | tuple) else value

    def _remember(self, key: Any, given: list[Tensor], result: Any) -> None:
        """Caches the layouts of new tensors; views and in-place operations must run each time."""
        made = result if isinstance(result, tuple | list) else [result]
        if not given or not all(isinstance(tensor, Tensor) for tensor in made):
            return
        old = {storage_key(tensor) for tensor in given}
        new = {storage_key(tensor) for tensor in made}
        if len(new) == len(made) and not old & new:
            self._known[key] = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in made]


def _key(values: Iterable[Any], given: list[Tensor]) -> tuple[Any, ...]:
    """What the layout of the result depends on; also collects the tensors in `given`."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            given.append(value)
            parts.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, list | tuple):
            parts.append(_key(value, given))
        else:
            parts.append((type(value), value))  # 1, 1.0 and True are equal but not the same
    return tuple(parts)


class FusedKernels(TorchFunctionMode):
    """Attention, dropout and norms as a GPU runs them, whatever the current machine would use.

    Attention is one kernel that saves q, k, v, its output and one number per row; dropout saves one byte per element;
    RMSNorm saves its input and one number per row, batch norm its input and two numbers per channel.
    """

    def __init__(self, on_macs: Callable[[int], None]) -> None:
        super().__init__()
        self.on_macs = on_macs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func is F.batch_norm:
            return _batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(  # noqa: PLR0917  (the signature of the function that it replaces)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """B A N d, B A M d, B A M e -> B A N e; a causal mask is counted as full attention."""
        self.on_macs(query.shape[:-1].numel() * key.shape[-2] * (key.shape[-1] + value.shape[-1]))
        mixed: Tensor = _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
        return mixed


class _FusedAttention(torch.autograd.Function):
    """What a fused attention kernel returns and saves, without the computation (FlashAttention, arXiv:2205.14135)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """B A N d -> B A N e."""
        same = query.shape[-1] == value.shape[-1]  # then the output has the memory layout of the queries
        mixed = torch.empty_like(query) if same else query.new_empty(*query.shape[:-1], value.shape[-1])
        row_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, mixed, row_sums)
        return mixed


def _dropout(tensor: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(tensor, p, True)[0] if training and p > 0 else tensor


class _FusedBatchNorm(torch.autograd.Function):
    """What a batch norm returns and saves, without the computation; it also accepts a batch of one."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: Tensor | None) -> Tensor:
        """B D ... -> B D ...."""
        statistics = tensor.new_empty(2, tensor.shape[1], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, statistics)
        return torch.empty_like(tensor)


def _batch_norm(  # noqa: PLR0917  (the signature of the function that it replaces)
    tensor: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(tensor, running_mean, running_var, weight, bias, False, momentum, eps)
    normed: Tensor = _FusedBatchNorm.apply(tensor, weight)  # type: ignore[no-untyped-call]
    return normed


class _FusedRMSNorm(torch.autograd.Function):
    """What a fused RMSNorm returns and saves, without the computation."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: Tensor | None, axes: int) -> Tensor:
        """... D -> ... D."""
        row_scales = tensor.new_empty(tensor.shape[: tensor.ndim - axes], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, row_scales)
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _rms_norm(
    tensor: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    normed: Tensor = _FusedRMSNorm.apply(tensor, weight, len(normalized_shape))  # type: ignore[no-untyped-call]
    return normed


def _convolution(image: Tensor, weight: Tensor, *rest: Any) -> int:
    """Output pixels times the weights of a channel; input pixels for a transposed convolution."""
    transposed, result = rest[4], rest[-1]
    return (image if transposed else result).numel() * weight[0].numel()


# MACs by operator: the product of the sizes of all indices; the last argument is the result.
_PRODUCTS: dict[Any, Callable[..., int]] = {
    aten.mm.default: lambda a, b, _: a.numel() * b.shape[-1],
    aten.bmm.default: lambda a, b, _: a.numel() * b.shape[-1],
    aten.addmm.default: lambda _bias, a, b, _: a.numel() * b.shape[-1],
    aten.baddbmm.default: lambda _bias, a, b, _: a.numel() * b.shape[-1],
    aten.mv.default: lambda a, _vector, _: a.numel(),
    aten.dot.default: lambda a, _vector, _: a.numel(),
    aten.convolution.default: _convolution,
}
