"""Dilated attention: a neighbourhood with gaps, for a larger receptive field at the same cost."""

from dataclasses import dataclass
from functools import partial

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, Site
from vitrail.layers.attention.sliding import SlidingConfig, sliding
from vitrail.layers.attention.tiles import TiledAttention


@dataclass(frozen=True, kw_only=True)
class DilatedConfig(SlidingConfig, kind="dilated"):
    """A window of `size` patches, `dilation` apart, shifted inward at the border (arXiv:2209.15001)."""

    dilation: tuple[Count, Count] = (2, 2)

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return DilatedAttention(self, site)


class DilatedAttention(TiledAttention):
    """Patches attend to their dilated window and the prefix; prefix tokens attend to all: B P+N D -> B P+N D."""

    def __init__(self, config: DilatedConfig, site: Site) -> None:
        sides = zip(config.size, config.dilation, strict=True)
        rows, columns = (partial(sliding, size=size, dilation=dilation) for size, dilation in sides)
        super().__init__(site, (rows, columns))
