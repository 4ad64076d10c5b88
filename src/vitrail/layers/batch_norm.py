"""Batch norms in training: statistics over all processes of a run, and frozen statistics."""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def sync_batch_norms(module: nn.Module) -> None:
    """Makes the batch norms of a module use the mean and variance over the images of all processes, in place.

    torch's own SyncBatchNorm only runs on GPUs. Parameters and buffers keep their names and values.
    """
    _keep_uncompiled()
    for part in module.modules():
        if type(part) in _SYNCED:
            part.__class__ = _SYNCED[type(part)]


def freeze_statistics(module: nn.Module) -> None:
    """Freezes the running statistics of batch norms with frozen parameters, in place (requires_grad does not)."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and _is_frozen(part):
            part.register_forward_pre_hook(_undo_train)


def _is_frozen(norm: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in norm.parameters())


def _undo_train(norm: nn.Module, _inputs: Any) -> None:
    if _is_frozen(norm):  # it may have been unfrozen since
        norm.eval()


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm with statistics over all processes in training; in evaluation it is the usual batch norm."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, values: Tensor) -> Tensor:
        """B D or B D h w, of this process -> the same shape, normalised over all processes."""
        if not self.training:
            return super().forward(values)
        over, shape = [0, *range(2, values.ndim)], (1, -1, *[1] * (values.ndim - 2))
        full = values.float()
        local = torch.cat([full.sum(over), full.new_full((1,), full.numel() / full.shape[1])])
        *_, count = total = _sum(local)
        mean = total[:-1] / count
        centred = full - mean.view(shape)
        variance = _sum(centred.square().sum(over)) / count
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = (variance + self.eps).rsqrt() * self.weight
        return (centred * scale.view(shape) + self.bias.view(shape)).to(values.dtype)


@functools.cache
def _keep_uncompiled() -> None:
    """Keeps the compiler out of what communicates. Not a decorator: it would import the compiler with every model."""
    SyncedBatchNorm.forward = torch.compiler.disable(SyncedBatchNorm.forward)  # type: ignore[method-assign]


class _Synced1d(SyncedBatchNorm, nn.BatchNorm1d):
    pass


class _Synced2d(SyncedBatchNorm, nn.BatchNorm2d):
    pass


_SYNCED: dict[type[nn.Module], type[SyncedBatchNorm]] = {nn.BatchNorm1d: _Synced1d, nn.BatchNorm2d: _Synced2d}


def _sum(values: Tensor) -> Tensor:
    """The sum over all processes, with gradients."""
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """Each process contributes to the losses of all others, so gradients are summed too."""

    @staticmethod
    def forward(_ctx: Any, values: Tensor) -> Tensor:
        return _summed(values)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return _summed(*gradients)


def _summed(values: Tensor) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
