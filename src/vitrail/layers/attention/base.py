"""The contract of every attention mechanism."""

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.errors import Unsupported
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.position import PositionConfig


class Site(NamedTuple):
    """What a model tells a mechanism about the place where it is built."""

    dim: int
    num_heads: int
    grid: Grid
    num_prefix: int = 0
    norm: NormConfig = LayerNormConfig()
    positions: tuple[PositionConfig, ...] = ()
    dropout: float = 0.0


class AttentionConfig(Choice):
    """Which attention mechanism a block uses."""

    @abstractmethod
    def build(self, site: Site) -> "Attention":
        """The layer for one block."""


class Attention(nn.Module):
    """How tokens talk: `forward` mixes them; `weights` shows the matrix, where the mechanism has one."""

    @abstractmethod
    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D, where the last h * w tokens are the patches, rows first."""

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """The explicit attention B A R P+N of the queries `rows` (all of them by default), each row summing to 1."""
        raise Unsupported(f"{type(self).__name__} has no attention matrix of tokens by tokens")
