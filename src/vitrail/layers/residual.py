"""Layers on residual branches: LayerScale and DropPath."""

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError


class LayerScale(nn.Module):
    """A learned gain per channel, ... D -> ... D, initially small (Touvron et al. 2021, arXiv:2103.17239)."""

    def __init__(self, dim: int, value: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((dim,), value))

    def forward(self, branch: Tensor) -> Tensor:
        """... D -> ... D."""
        return branch * self.gain


class DropPath(nn.Module):
    """Drops the whole branch of random samples in training and rescales the others (arXiv:1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ConfigError(f"drop_path is {rate}; it must be at least 0 and less than 1")
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """B ... -> B ...; the expectation stays the same."""
        factors = self.factors(branch)
        return (
            branch
            if factors is None
            else branch * factors.unflatten(0, (-1, *[1] * (branch.ndim - 1))).to(branch.dtype)
        )

    def factors(self, branch: Tensor) -> Tensor | None:
        """What each sample is multiplied by, B ... -> B, float32; None if nothing is dropped."""
        if not self.training or self.rate == 0.0:
            return None
        keep = 1.0 - self.rate
        # Not bernoulli_: torch.compile would make the rate a constant and recompile blocks with other rates.
        return (torch.rand(branch.shape[0], device=branch.device) < keep) / keep


def linear_ramp(rate: float, depth: int) -> list[float]:
    """DropPath rates that grow from 0 in the first block to `rate` in the last."""
    return [rate * index / max(depth - 1, 1) for index in range(depth)]
