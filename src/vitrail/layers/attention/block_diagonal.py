"""Block-diagonal attention: the grid is cut into blocks, and patches see their own block alone."""

from dataclasses import dataclass
from functools import partial

import torch

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, AttentionConfig, Site
from vitrail.layers.attention.tiles import Axis, TiledAttention


@dataclass(frozen=True, kw_only=True)
class BlockDiagonalConfig(AttentionConfig, kind="block_diagonal"):
    """Blocks of `size` patches that never look at one another (arXiv:1911.02972); the last ones may be smaller.

    Prefix tokens, or an MLP that reads neighbours, carry what there is to tell from block to block.
    """

    ordered = True
    size: tuple[Count, Count] = (7, 7)

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return BlockDiagonalAttention(self, site)


class BlockDiagonalAttention(TiledAttention):
    """Patches see their block and the prefix; prefix tokens see all: B P+N D -> B P+N D."""

    def __init__(self, config: BlockDiagonalConfig, site: Site) -> None:
        rows, columns = (partial(blocks, size=size) for size in config.size)
        super().__init__(site, (rows, columns))


def blocks(length: int, *, size: int) -> Axis:
    """Places in groups of `size`, each of which sees itself."""
    size = min(size, length)
    places = torch.arange(0, length, size)[:, None] + torch.arange(size)  # T t
    inside = places.clamp(max=length - 1)
    seen = (places < length)[:, None].expand(-1, size, -1)  # T t t: all see what is there
    return Axis(inside, inside, None if length % size == 0 else seen, torch.arange(length))
