"""Normalisation: LayerNorm, RMSNorm and GroupNorm of one group."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice, Positive


class NormConfig(Choice):
    """Which normalisation a model uses everywhere."""

    @abstractmethod
    def build(self, dim: int) -> nn.Module:
        """The layer: ... D -> ... D."""


@dataclass(frozen=True, kw_only=True)
class LayerNormConfig(NormConfig, kind="layer"):
    """Mean and variance over D, then gain and bias (Ba et al. 2016, arXiv:1607.06450)."""

    eps: Positive = 1e-6

    def build(self, dim: int) -> nn.Module:
        """The layer: ... D -> ... D."""
        return nn.LayerNorm(dim, eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class RMSNormConfig(NormConfig, kind="rms"):
    """Root mean square over D, then gain (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    eps: Positive = 1e-6

    def build(self, dim: int) -> nn.Module:
        """The layer: ... D -> ... D."""
        return nn.RMSNorm(dim, eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class UnbiasedLayerNormConfig(NormConfig, kind="layer_unbiased"):
    """LayerNorm with a gain and no bias (MetaFormer baselines, arXiv:2210.13452)."""

    eps: Positive = 1e-6

    def build(self, dim: int) -> nn.Module:
        """The layer: ... D -> ... D."""
        return nn.LayerNorm(dim, eps=self.eps, bias=False)


@dataclass(frozen=True, kw_only=True)
class GroupNormConfig(NormConfig, kind="group"):
    """Mean and variance over all tokens and channels of a sample, then gain and bias (PoolFormer, arXiv:2111.11418)."""

    eps: Positive = 1e-5
    bias: bool = True

    def build(self, dim: int) -> nn.Module:
        """The layer: B ... D -> B ... D."""
        return GroupNorm(dim, self)


class GroupNorm(nn.Module):
    """GroupNorm of one group, with channels last: B ... D -> B ... D (Wu and He 2018, arXiv:1803.08494)."""

    def __init__(self, dim: int, config: GroupNormConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    def forward(self, tokens: Tensor) -> Tensor:
        """B ... D -> B ... D."""
        normed = F.layer_norm(tokens, tokens.shape[1:], eps=self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias
