"""The contract of every attention mechanism."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.dropout import Dropout
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import Grid
from vitrail.layers.position import PositionConfig


class Site(NamedTuple):
    """Where a mechanism is built: the widths, the grid and the options of its model."""

    dim: int
    num_heads: int
    grid: Grid
    num_prefix: int = 0
    norm: NormConfig = LayerNormConfig()
    positions: tuple[PositionConfig, ...] = ()
    dropout: float = 0.0
    block: int = 0  # index in its stage: shifted windows alternate


class AttentionConfig(Choice):
    """Which attention mechanism a block uses.

    `ordered`: it depends on the order of the tokens (windows, convolutions, learned maps over N); others do not.
    `has_weights`: its layer can return the matrix of tokens by tokens, each row of which is a distribution.
    """

    ordered: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True

    @abstractmethod
    def build(self, site: Site) -> "Attention":
        """The layer for one block."""


class Attention(nn.Module):
    """An attention layer: `forward` mixes tokens; `weights` returns the matrix, if the mechanism has one."""

    num_heads: int = 0  # 0: a token mixer that is not attention

    @abstractmethod
    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D, where the last h * w tokens are the patches, row by row."""

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """The explicit attention B A R P+N of the queries `rows` (all of them by default).

        Each row sums to 1, or to less if a mechanism attends to padding.
        """
        raise Unsupported(f"{type(self).__name__} has no attention matrix of tokens by tokens")

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values of all tokens, B A P+N v: `weights` times them is the input of `readout`."""
        raise Unsupported(f"{type(self).__name__} has no values per token")

    @property
    def readout(self) -> nn.Module:
        """The module after the heads, whose input is their concatenated output: B P+N Av."""
        return self.get_submodule("projection")


def refuse_positions(layer: Attention, site: Site, usable: tuple[str, ...] = ()) -> None:
    """Raises Unsupported for positions inside attention that a mechanism cannot use."""
    if wrong := [position.kind for position in site.positions if position.kind not in usable]:
        raise Unsupported(
            f"{type(layer).__name__} cannot use {wrong[0]} positions; use positions that are added to the tokens, "
            "such as position='learned'"
        )


class MultiHead(Attention):
    """The base of most mechanisms: a linear map to queries, keys and values, heads, and an output projection.

    `positions` are the kinds of positions inside attention that the mechanism supports; `maps` are the names of the
    linear maps, one letter for each output: ("q", "kv") if keys and values come from other tokens.
    """

    positions: tuple[str, ...] = ()
    maps: tuple[str, ...] = ("qkv",)
    qkv: nn.Linear

    def __init__(self, site: Site, *, head_dim: int | None = None, bias: bool = True) -> None:
        super().__init__()
        refuse_positions(self, site, usable=self.positions)
        if head_dim is None and site.dim % site.num_heads:
            raise ConfigError(
                f"dim {site.dim} is not divisible by num_heads {site.num_heads}; change num_heads, or set head_dim"
            )
        self.num_heads, self.head_dim = site.num_heads, head_dim or site.dim // site.num_heads
        inner = self.num_heads * self.head_dim
        for name in self.maps:
            self.add_module(name, nn.Linear(site.dim, len(name) * inner, bias=bias))
        self.projection = nn.Linear(inner, site.dim)
        self.drop = Dropout(site.dropout)

    def projected(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values, concatenated: B P+N D -> B P+N 3Ad."""
        return self.qkv(tokens)

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each."""
        # Chunks, not one permuted tensor: the backward pass then needs one copy to join the gradients instead of two.
        q, k, v = (self.split(part) for part in self.projected(tokens).chunk(3, dim=-1))
        return q, k, v

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B P+N D -> B A P+N d."""
        return self.heads(tokens)[2]

    def split(self, part: Tensor) -> Tensor:
        """Concatenated heads B N Ad -> B A N d."""
        return part.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def joined(self, mixed: Tensor) -> Tensor:
        """The outputs of the heads B A P+N d, concatenated and projected: B P+N D."""
        return self.drop(self.projection(mixed.transpose(1, 2).flatten(2)))
