"""Feed-forward layers: MLP, SwiGLU and StarReLU."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice, Count, Positive
from vitrail.layers import kernels
from vitrail.layers.dropout import Dropout
from vitrail.layers.fp8 import Rows, multiplied, takes_rows, without_bias
from vitrail.layers.norm import NormConfig
from vitrail.layers.patch import Grid


def activate(x: Tensor, activation: str) -> Tensor:
    """Exact GELU, its tanh approximation, CLIP's x * sigmoid(1.702 x), or SiLU (arXiv:1606.08415)."""
    if activation == "silu":
        return F.silu(x)
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


class MLPConfig(Choice):
    """Which feed-forward layer; `hidden` overrides `ratio`."""

    @abstractmethod
    def build(self, dim: int, *, norm: NormConfig, dropout: float = 0.0) -> nn.Module:
        """The layer: B P+N D and their grid -> B P+N D."""


@dataclass(frozen=True, kw_only=True)
class GeluMLPConfig(MLPConfig, kind="mlp"):
    """Linear, GELU, linear; `inner_norm` normalises the hidden layer (NormFormer, arXiv:2110.09456)."""

    ratio: Positive = 4.0
    hidden: Count | None = None
    activation: Literal["gelu", "gelu_tanh", "quick_gelu", "silu"] = "gelu"
    inner_norm: bool = False

    def build(self, dim: int, *, norm: NormConfig, dropout: float = 0.0) -> nn.Module:
        """The layer: B N D -> B N D."""
        return MLP(dim, self, norm=norm, dropout=dropout)


@dataclass(frozen=True, kw_only=True)
class SwiGLUConfig(MLPConfig, kind="swiglu"):
    """SiLU-gated linear unit; the default ratio keeps an MLP's parameter count (Shazeer 2020, arXiv:2002.05202)."""

    ratio: Positive = 8 / 3
    hidden: Count | None = None
    inner_norm: bool = False

    def build(self, dim: int, *, norm: NormConfig, dropout: float = 0.0) -> nn.Module:
        """The layer: B N D -> B N D."""
        return SwiGLU(dim, self, norm=norm, dropout=dropout)


@dataclass(frozen=True, kw_only=True)
class StarReLUConfig(MLPConfig, kind="star_relu"):
    """Linear, StarReLU, linear, without biases (MetaFormer baselines, arXiv:2210.13452)."""

    ratio: Positive = 4.0
    hidden: Count | None = None

    def build(self, dim: int, *, norm: NormConfig, dropout: float = 0.0) -> nn.Module:
        """The layer: B N D -> B N D."""
        return StarMLP(dim, self, dropout=dropout)


class MLP(nn.Module):
    """B N D -> B N D through one hidden layer with GELU."""

    def __init__(self, dim: int, config: GeluMLPConfig, *, norm: NormConfig, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = config.hidden or max(int(dim * config.ratio), 1)
        self.activation = config.activation
        self.fc1 = nn.Linear(dim, hidden)
        self.norm = norm.build(hidden) if config.inner_norm else nn.Identity()
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = Dropout(dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        return self.drop(multiplied(self.fc2, *self.inner(tokens)))

    def inner(self, tokens: Tensor) -> tuple[Tensor, Rows | None]:
        """The input of the last linear layer, and its rows in 8 bits where a kernel wrote them: B N D -> B N H."""
        if kernels.suits(tokens) and self._in_rows(tokens):
            return kernels.bias_gelu_rows(without_bias(self.fc1, tokens), self.fc1.bias)
        return self.norm(self._hidden(tokens)), None

    def _in_rows(self, tokens: Tensor) -> bool:
        """Whether the kernel of GELU can write what the second layer multiplies in 8 bits."""
        fits = takes_rows(self.fc2, tokens) and kernels.plain(self.fc2) and isinstance(self.norm, nn.Identity)
        return fits and self._has_kernel(tokens) and not (self.training and self.drop.p > 0)

    def _hidden(self, tokens: Tensor) -> Tensor:
        """The activated hidden layer, after dropout: B N D -> B N H."""
        if kernels.suits(tokens) and self._has_kernel(tokens):
            dropout = self.drop.p if self.training else 0.0
            return kernels.bias_gelu(without_bias(self.fc1, tokens), self.fc1.bias, dropout)
        return self.drop(activate(self.fc1(tokens), self.activation))

    def _has_kernel(self, tokens: Tensor) -> bool:
        """Whether the Triton kernel is faster: exact GELU of many numbers."""
        size = tokens.numel() // self.fc1.in_features * self.fc1.out_features
        random = self.training and self.drop.p > 0
        fits = self.activation == "gelu" and kernels.plain(self.fc1) and (kernels.DROPOUT or not random)
        return fits and size >= kernels.LARGE


class SwiGLU(nn.Module):
    """B N D -> B N D; the first half of `fc1` is the gate, the second half the value."""

    def __init__(self, dim: int, config: SwiGLUConfig, *, norm: NormConfig, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = config.hidden or max(int(dim * config.ratio), 1)
        self.fc1 = nn.Linear(dim, 2 * hidden)
        self.norm = norm.build(hidden) if config.inner_norm else nn.Identity()
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = Dropout(dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        gate, value = self.fc1(tokens).chunk(2, dim=-1)
        return self.drop(self.fc2(self.norm(self.drop(F.silu(gate) * value))))


class StarReLU(nn.Module):
    """scale * relu(x)^2 + bias, ... -> ..., with two learned numbers (Yu et al. 2022, arXiv:2210.13452)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """... -> ..."""
        return self.scale * F.relu(x).square() + self.bias


class StarMLP(nn.Module):
    """B N D -> B N D through one hidden layer with StarReLU."""

    def __init__(self, dim: int, config: StarReLUConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = config.hidden or max(int(dim * config.ratio), 1)
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.activation = StarReLU()
        self.fc2 = nn.Linear(hidden, dim, bias=False)
        self.drop = Dropout(dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B N D -> B N D."""
        return self.drop(self.fc2(self.drop(self.activation(self.fc1(tokens)))))
