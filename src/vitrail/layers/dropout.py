"""Dropout (Srivastava et al. 2014) that is quick on a CPU, too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BITS = 16  # random bits for each number: the share that is dropped is rounded to a multiple of 2^-16
_LEVELS = 1 << _BITS


def dropout(x: Tensor, rate: float) -> Tensor:
    """A random share of the numbers is zero, the others are scaled up: ... -> ...

    On a CPU, PyTorch draws 32 random bits or more for each number, which takes longer than GELU; here four numbers
    share a draw of 64 bits.
    """
    if rate <= 0.0:
        return x
    if not quick(x):
        return F.dropout(x, rate)
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    count = x.numel()
    draws = torch.empty(-(-count * _BITS // 64), dtype=torch.int64).random_(-(1 << 63), None)
    kept = draws.view(torch.int16)[:count].view(x.shape) >= dropped - _LEVELS // 2
    return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


def quick(x: Tensor) -> bool:
    """Whether random numbers are drawn here: on a CPU, where no compiler replaces the operators anyway."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class Dropout(nn.Dropout):
    """... -> ..., in training only."""

    def forward(self, x: Tensor) -> Tensor:
        """... -> ..."""
        return dropout(x, self.p) if self.training else x
