"""Block-diagonal attention: the grid is cut into blocks, and patches attend only within their block."""

from dataclasses import dataclass
from functools import partial

import torch

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, AttentionConfig, Site
from vitrail.layers.attention.tiles import Axis, TiledAttention


@dataclass(frozen=True, kw_only=True)
class BlockDiagonalConfig(AttentionConfig, kind="block_diagonal"):
    """Attention within blocks of `size` patches (arXiv:1911.02972); the last blocks may be smaller.

    Only prefix tokens, or an MLP with convolutions, exchange information between blocks.
    """

    ordered = True
    size: tuple[Count, Count] = (7, 7)

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return BlockDiagonalAttention(self, site)


class BlockDiagonalAttention(TiledAttention):
    """Patches attend to their block and the prefix; prefix tokens attend to all: B P+N D -> B P+N D."""

    def __init__(self, config: BlockDiagonalConfig, site: Site) -> None:
        rows, columns = (partial(blocks, size=size) for size in config.size)
        super().__init__(site, (rows, columns))


def blocks(length: int, *, size: int) -> Axis:
    """Groups of `size` positions; each attends to itself."""
    size = min(size, length)
    indices = torch.arange(0, length, size)[:, None] + torch.arange(size)  # T t
    inside = indices.clamp(max=length - 1)
    seen = (indices < length)[:, None].expand(-1, size, -1)  # T t t: all but the padding
    return Axis(inside, inside, None if length % size == 0 else seen, torch.arange(length))
