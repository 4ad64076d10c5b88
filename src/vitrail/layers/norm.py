"""Normalisation: LayerNorm and RMSNorm."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import nn

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
