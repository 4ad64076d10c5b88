"""Sliding windows, shared by local, neighbourhood and dilated attention."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.layers.attention.base import AttentionConfig
from vitrail.layers.attention.tiles import Axis

TILE = 8  # queries per side: smaller tiles mask fewer keys, larger ones use the kernel better; 8 is best on CPUs


@dataclass(frozen=True, kw_only=True)
class SlidingConfig(AttentionConfig):
    """A window of `size` patches around each patch."""

    ordered = True
    size: tuple[Count, Count] = (7, 7)

    def __post_init__(self) -> None:
        """Raises ConfigError if a side is even."""
        super().__post_init__()
        if even := [side for side in self.size if side % 2 == 0]:
            raise ConfigError(
                f"the window size is {self.size[0]} x {self.size[1]}; sides must be odd, such as {even[0] - 1} or "
                f"{even[0] + 1}"
            )


def sliding(length: int, *, size: int, dilation: int = 1, inward: bool = True) -> Axis:
    """Each position attends to `size` positions around it, `dilation` apart.

    At the ends, the window is shifted inward or cut off. Positions only attend within their residue class modulo
    `dilation`, so that each class is a short axis of its own.
    """
    lengths = [len(range(first, length, dilation)) for first in range(min(dilation, length))]
    tile = min(TILE, lengths[0])
    region = min(tile + size - 1, lengths[0])
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    home, before = torch.zeros(length, dtype=torch.long), 0
    for first, count in enumerate(lengths):
        starts = torch.arange(0, count, tile)[:, None]  # T 1
        queries = (starts + torch.arange(tile)).clamp(max=count - 1)  # T t
        keys = (starts - size // 2).clamp(min=0, max=max(count - region, 0)) + torch.arange(region)  # T r
        left = (queries - size // 2).clamp(min=0, max=max(count - size, 0)) if inward else queries - size // 2
        left, each = left[:, :, None], keys[:, None]  # T t 1, T 1 r
        seen = (each >= left) & (each < left + size) & (each < count)  # T t r
        parts.append((first + dilation * queries, first + dilation * keys.clamp(max=count - 1), seen))
        home[first::dilation] = before + torch.arange(count)
        before += queries.numel()
    queries, keys, seen = (torch.cat(part) for part in zip(*parts, strict=True))
    alone = dilation == 1 and length <= size and (inward or length <= size // 2 + 1)
    return Axis(queries, keys, None if alone else seen, home)
