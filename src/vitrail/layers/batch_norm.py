"""Batch norms in training: those that count over all processes of a run, and those that are frozen and stay so."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def count_together(module: nn.Module) -> None:
    """Makes the batch norms of a module, in place, take mean and variance over the images of all processes.

    torch's own SyncBatchNorm does so on GPUs alone. Names and values of parameters and buffers stay as they are.
    """
    for part in module.modules():
        if type(part) in _TOGETHER:
            part.__class__ = _TOGETHER[type(part)]


def hold_still(module: nn.Module) -> None:
    """Keeps, in place, the statistics of batch norms that do not learn: no flag of their parameters would."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and _is_frozen(part):
            part.register_forward_pre_hook(_undo_train)


def _is_frozen(norm: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in norm.parameters())


def _undo_train(norm: nn.Module, _inputs: Any) -> None:
    if _is_frozen(norm):  # it may have been thawed since
        norm.eval()


class Together(nn.modules.batchnorm._BatchNorm):
    """A batch norm as one of many processes trains it; where it does not learn, it is the usual one."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # processes talk to each other here
    def forward(self, values: Tensor) -> Tensor:
        """B D or B D h w, of this process -> the same, normalised by what all of them have."""
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


class _Together1d(Together, nn.BatchNorm1d):
    pass


class _Together2d(Together, nn.BatchNorm2d):
    pass


_TOGETHER: dict[type[nn.Module], type[Together]] = {nn.BatchNorm1d: _Together1d, nn.BatchNorm2d: _Together2d}


def _sum(values: Tensor) -> Tensor:
    """The sum over all processes, through which gradients pass."""
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """Each process has a part in the losses of all others, so gradients are summed too."""

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
