"""Neighbourhood attention: each patch sees the nearest patches, the same number of them everywhere."""

from dataclasses import dataclass
from functools import partial

from vitrail.layers.attention.base import Attention, Site
from vitrail.layers.attention.sliding import SlidingConfig, sliding
from vitrail.layers.attention.tiles import TiledAttention


@dataclass(frozen=True, kw_only=True)
class NeighbourhoodConfig(SlidingConfig, kind="neighbourhood"):
    """A window of `size` patches around the query, moved inward at the border (Hassani et al. 2022, arXiv:2204.07143).

    A window as large as the grid is full attention.
    """

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return NeighbourhoodAttention(self, site)


class NeighbourhoodAttention(TiledAttention):
    """Patches see their neighbourhood and the prefix; prefix tokens see all: B P+N D -> B P+N D."""

    def __init__(self, config: NeighbourhoodConfig, site: Site) -> None:
        rows, columns = (partial(sliding, size=size) for size in config.size)
        super().__init__(site, (rows, columns))
