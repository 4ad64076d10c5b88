"""Folding for inference: batch norms are folded into the linear maps or convolutions next to them."""

from abc import abstractmethod
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitrail.errors import Unsupported

L = TypeVar("L", nn.Linear, nn.Conv2d)
M = TypeVar("M", bound=nn.Module)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


class Fusable(nn.Module):
    """A layer with a simpler form for inference, which `fused()` returns.

    This is a base class, not a protocol, since attention layers have a flag of the same name.
    """

    @abstractmethod
    def fused(self) -> nn.Module:
        """A layer that computes the same in evaluation, with branches and norms folded; this one is not changed."""


def fuse(module: M) -> M:
    """Replaces every Fusable in a module by its fused form, in place; for inference only."""
    for name, child in module.named_children():
        setattr(module, name, child.fused() if isinstance(child, Fusable) else fuse(child))
    return module


@torch.no_grad()
def fold_batch_norm(layer: L, norm: BatchNorm) -> L:
    """One layer with a bias that computes norm(layer(x)), with the norm in evaluation."""
    gain, offset = scale_and_shift(norm)
    weight = layer.weight.to(gain) * gain.view(-1, *[1] * (layer.weight.ndim - 1))  # out in/groups (p q)
    return with_weights(layer, weight, offset + gain * _bias(layer))


@torch.no_grad()
def fold_batch_norm_before(norm: BatchNorm, layer: nn.Linear) -> nn.Linear:
    """One linear map with a bias that computes layer(norm(x)), with the norm in evaluation."""
    gain, offset = scale_and_shift(norm)
    weight = layer.weight.to(gain)  # out in
    return with_weights(layer, weight * gain, weight @ offset + _bias(layer))


@torch.no_grad()
def scale_and_shift(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """The scale and the shift, C each, that a batch norm applies in evaluation; in float32 or wider."""
    if norm.running_mean is None or norm.running_var is None:
        raise Unsupported("cannot fold a batch norm without running statistics (track_running_stats=False)")
    dtype = torch.promote_types(norm.running_var.dtype, torch.float32)
    mean, variance = norm.running_mean.to(dtype), norm.running_var.to(dtype)
    gain = norm.weight.to(dtype) * (variance + norm.eps).rsqrt()
    return gain, norm.bias.to(dtype) - mean * gain


def with_weights(layer: L, weight: Tensor, bias: Tensor) -> L:
    """A new layer of the same kind, type and device, with these weights and this bias."""
    twin: L
    if isinstance(layer, nn.Linear):
        twin = nn.Linear(layer.in_features, layer.out_features)
    else:
        twin = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            stride=layer.stride,  # type: ignore[arg-type]
            padding=layer.padding,  # type: ignore[arg-type]
            dilation=layer.dilation,  # type: ignore[arg-type]
            groups=layer.groups,
            padding_mode=layer.padding_mode,
        )
    twin = twin.to(layer.weight).train(layer.training)
    twin.weight.data.copy_(weight)
    twin.bias.data.copy_(bias)  # type: ignore[union-attr]
    return twin


def _bias(layer: nn.Linear | nn.Conv2d) -> Tensor | float:
    bias: Tensor | None = layer.bias
    return 0.0 if bias is None else bias
