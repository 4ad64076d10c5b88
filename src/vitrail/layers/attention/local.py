"""Local attention: each patch sees a window around itself, cut off at the border."""

from dataclasses import dataclass
from functools import partial

from vitrail.layers.attention.base import Attention, Site
from vitrail.layers.attention.sliding import SlidingConfig, sliding
from vitrail.layers.attention.tiles import TiledAttention


@dataclass(frozen=True, kw_only=True)
class LocalConfig(SlidingConfig, kind="local"):
    """A window of `size` patches in the middle of which the query stands (Ramachandran et al. 2019, arXiv:1906.05909).

    Near the border the window is cut off: a corner sees a quarter of it.
    """

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return LocalAttention(self, site)


class LocalAttention(TiledAttention):
    """Patches see their window and the prefix; prefix tokens see all: B P+N D -> B P+N D."""

    def __init__(self, config: LocalConfig, site: Site) -> None:
        rows, columns = (partial(sliding, size=size, inward=False) for size in config.size)
        super().__init__(site, (rows, columns))
