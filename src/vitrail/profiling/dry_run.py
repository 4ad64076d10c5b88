"""A forward pass on shapes alone: nothing is computed or allocated, and every matrix product is counted."""

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
    """What two tensors have in common when they share memory; good as long as one of them lives."""
    return tensor.untyped_storage()._cdata


class Shapes(TorchDispatchMode):
    """Turns every tensor into one without data (device "meta") and tells `on_macs` the size of each product.

    The shape rules of some operators cost a millisecond of Python each, so their outcome is remembered: all blocks of
    a model after the first come nearly free.
    """

    def __init__(self, on_macs: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_macs = on_macs
        self._blanks: dict[int, tuple[Tensor, Tensor]] = {}  # the first tensor is held so that its id stays its own
        self._known: dict[Any, list[Layout]] = {}

    def blank(self, tensor: Tensor) -> Tensor:
        """The same shape without data; always the same one for the same tensor."""
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
        """Keeps the layout of fresh results; a view or a change in place must happen each time."""
        made = result if isinstance(result, tuple | list) else [result]
        if not given or not all(isinstance(tensor, Tensor) for tensor in made):
            return
        old = {storage_key(tensor) for tensor in given}
        new = {storage_key(tensor) for tensor in made}
        if len(new) == len(made) and not old & new:
            self._known[key] = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in made]


def _key(values: Iterable[Any], given: list[Tensor]) -> tuple[Any, ...]:
    """What the outcome's layout depends on; collects the tensors on the way."""
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
    """Attention, dropout and norms as an accelerator runs them, whatever the machine at hand would choose.

    Attention is one kernel that keeps q, k, v, its output and one number a row; dropout keeps one byte an element;
    RMSNorm keeps its input and one number a row, batch norm its input and two numbers a channel.
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

    def _attention(  # noqa: PLR0917  (the signature of the function that it stands for)
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
        """B A N d, B A M d, B A M e -> B A N e; a causal mask saves nothing here, as no kernel skips all of it."""
        self.on_macs(query.shape[:-1].numel() * key.shape[-2] * (key.shape[-1] + value.shape[-1]))
        mixed: Tensor = _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
        return mixed


class _FusedAttention(torch.autograd.Function):
    """What a fused attention kernel returns and keeps, without the work (FlashAttention, arXiv:2205.14135)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """B A N d -> B A N e."""
        same = query.shape[-1] == value.shape[-1]  # then the kernels take over the queries' order in memory
        mixed = torch.empty_like(query) if same else query.new_empty(*query.shape[:-1], value.shape[-1])
        row_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, mixed, row_sums)
        return mixed


def _dropout(tensor: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(tensor, p, True)[0] if training and p > 0 else tensor


class _FusedBatchNorm(torch.autograd.Function):
    """What a batch norm returns and keeps, without the work: one image may stand for a batch that has a variance."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: Tensor | None) -> Tensor:
        """B D ... -> B D ...."""
        statistics = tensor.new_empty(2, tensor.shape[1], dtype=torch.float32)
        ctx.save_for_backward(tensor, weight, statistics)
        return torch.empty_like(tensor)


def _batch_norm(  # noqa: PLR0917  (the signature of the function that it stands for)
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
    """What a fused RMSNorm returns and keeps, without the work."""

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
    """Each output pixel meets all weights of its channel; in a transposed convolution each input pixel does."""
    transposed, result = rest[4], rest[-1]
    return (image if transposed else result).numel() * weight[0].numel()


# The product of the sizes of all indices involved; the last argument is the result.
_PRODUCTS: dict[Any, Callable[..., int]] = {
    aten.mm.default: lambda a, b, _: a.numel() * b.shape[-1],
    aten.bmm.default: lambda a, b, _: a.numel() * b.shape[-1],
    aten.addmm.default: lambda _bias, a, b, _: a.numel() * b.shape[-1],
    aten.baddbmm.default: lambda _bias, a, b, _: a.numel() * b.shape[-1],
    aten.mv.default: lambda a, _vector, _: a.numel(),
    aten.dot.default: lambda a, _vector, _: a.numel(),
    aten.convolution.default: _convolution,
}
