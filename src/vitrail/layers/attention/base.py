"""The contract of every attention mechanism."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.errors import ConfigError, Unsupported
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
    block: int = 0  # which one of its stage: shifted windows alternate


class AttentionConfig(Choice):
    """Which attention mechanism a block uses.

    `ordered`: it reads where tokens stand (windows, convolutions, learned maps over N); all others see a set.
    `has_weights`: its layer can show the matrix of tokens by tokens, each row of which is a distribution.
    """

    ordered: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True

    @abstractmethod
    def build(self, site: Site) -> "Attention":
        """The layer for one block."""


class Attention(nn.Module):
    """How tokens talk: `forward` mixes them; `weights` shows the matrix, where the mechanism has one."""

    num_heads: int = 0  # none: what mixes the tokens is no attention

    @abstractmethod
    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D, where the last h * w tokens are the patches, rows first."""

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """The explicit attention B A R P+N of the queries `rows` (all of them by default).

        Each row sums to 1, or to less where a mechanism sees padding.
        """
        raise Unsupported(f"{type(self).__name__} has no attention matrix of tokens by tokens")

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """What each token gives to those that attend to it, B A P+N v: `weights` times it is what `readout` reads."""
        raise Unsupported(f"{type(self).__name__} has no values for each token")

    @property
    def readout(self) -> nn.Module:
        """The module that reads what the heads mixed, side by side: B P+N Av."""
        return self.get_submodule("projection")


def refuse_positions(layer: Attention, site: Site, usable: tuple[str, ...] = ()) -> None:
    """Refuses positions that act inside attention, where a mechanism has no use for them."""
    if wrong := [position.kind for position in site.positions if position.kind not in usable]:
        raise Unsupported(
            f"{type(layer).__name__} cannot use {wrong[0]} positions; those that are added to the tokens, such as "
            "position='learned', go with every attention"
        )


class MultiHead(Attention):
    """What most mechanisms share: one linear map to queries, keys and values, heads side by side, one map back.

    `positions` names the kinds of positions, of those that act inside attention, that the mechanism can use; `maps`
    the linear maps of tokens, by the letters of what they give: ("q", "kv") where keys are read from other tokens.
    """

    positions: tuple[str, ...] = ()
    maps: tuple[str, ...] = ("qkv",)
    qkv: nn.Linear

    def __init__(self, site: Site, *, head_dim: int | None = None, bias: bool = True) -> None:
        super().__init__()
        refuse_positions(self, site, usable=self.positions)
        if head_dim is None and site.dim % site.num_heads:
            raise ConfigError(
                f"dim {site.dim} does not divide into {site.num_heads} heads; choose another num_heads, or set head_dim"
            )
        self.num_heads, self.head_dim = site.num_heads, head_dim or site.dim // site.num_heads
        inner = self.num_heads * self.head_dim
        for name in self.maps:
            self.add_module(name, nn.Linear(site.dim, len(name) * inner, bias=bias))
        self.projection = nn.Linear(inner, site.dim)
        self.drop = nn.Dropout(site.dropout)

    def projected(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values side by side: B P+N D -> B P+N 3Ad."""
        return self.qkv(tokens)

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each."""
        # Chunks, not one permuted tensor: their gradients are joined by one copy in the backward pass instead of two.
        q, k, v = (self.split(part) for part in self.projected(tokens).chunk(3, dim=-1))
        return q, k, v

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B P+N D -> B A P+N d."""
        return self.heads(tokens)[2]

    def split(self, part: Tensor) -> Tensor:
        """Heads side by side B N Ad -> B A N d."""
        return part.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def joined(self, mixed: Tensor) -> Tensor:
        """The heads' outputs B A P+N d side by side, projected back: B P+N D."""
        return self.drop(self.projection(mixed.transpose(1, 2).flatten(2)))
