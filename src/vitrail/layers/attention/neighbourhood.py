"""Neighbourhood attention: each patch attends to the same number of nearest patches."""

from dataclasses import dataclass
from functools import partial

from vitrail.layers.attention.base import Attention, Site
from vitrail.layers.attention.sliding import SlidingConfig, sliding
from vitrail.layers.attention.tiles import TiledAttention


@dataclass(frozen=True, kw_only=True)
class NeighbourhoodConfig(SlidingConfig, kind="neighbourhood"):
    """A window of `size` patches around the query, shifted inward at the border (arXiv:2204.07143).

    A window as large as the grid is full attention.
    """

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return NeighbourhoodAttention(self, site)


class NeighbourhoodAttention(TiledAttention):
    """Patches attend to their neighbourhood and the prefix; prefix tokens attend to all: B P+N D -> B P+N D."""

    def __init__(self, config: NeighbourhoodConfig, site: Site) -> None:
        rows, columns = (partial(sliding, size=size) for size in config.size)
        super().__init__(site, (rows, columns))
