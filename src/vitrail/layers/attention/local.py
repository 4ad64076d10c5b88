"""Local attention: each patch attends to a window around itself, cut off at the border."""

from dataclasses import dataclass
from functools import partial

from vitrail.layers.attention.base import Attention, Site
from vitrail.layers.attention.sliding import SlidingConfig, sliding
from vitrail.layers.attention.tiles import TiledAttention


@dataclass(frozen=True, kw_only=True)
class LocalConfig(SlidingConfig, kind="local"):
    """A window of `size` patches, centred at the query (Ramachandran et al. 2019, arXiv:1906.05909).

    The window is cut off at the border: a corner has about a quarter of it.
    """

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return LocalAttention(self, site)


class LocalAttention(TiledAttention):
    """Patches attend to their window and the prefix; prefix tokens attend to all: B P+N D -> B P+N D."""

    def __init__(self, config: LocalConfig, site: Site) -> None:
        rows, columns = (partial(sliding, size=size, inward=False) for size in config.size)
        super().__init__(site, (rows, columns))
