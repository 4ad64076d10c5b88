"""A bias by how far two patches are apart, laid out so that a mask of attention is a view of it, not a copy."""

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.patch import Grid


class Strips(NamedTuple):
    """What each pair of patches adds to its logit: a strip for each column of queries, less than all pairs.

    A strip has a row of keys for each of the 2h-1 distances down. Where keys go backwards, from the last patch to the
    first, what a row of queries reads is a window of h such rows, and the next row reads one further.
    Queries stand on every `stride`-th row and column of the map: on a grid of h' by w'.
    """

    strips: Tensor  # A w' 2h-1 w
    prefix: Tensor  # A P: what patches add for the keys of the P tokens before them
    asked: Tensor  # A P P+N: what those tokens add when they ask
    stride: int = 1

    @property
    def keys(self) -> Grid:
        """The grid of the keys."""
        return (self.strips.shape[2] + 1) // 2, self.strips.shape[3]

    @property
    def queries(self) -> Grid:
        """The grid of the queries."""
        return (self.keys[0] - 1) // self.stride + 1, self.strips.shape[1]

    def rows(self, first: int, last: int) -> Tensor:
        """The bias of some rows of queries, column by column, and of all keys, backwards: A w'R P+N."""
        found = windows(self.strips, self.stride)[:, :, first:last]  # A w' R N
        prefix = self.prefix[:, None, None].expand(*found.shape[:3], -1)
        return torch.cat([prefix, found], dim=3).flatten(1, 2)

    def whole(self) -> Tensor:
        """The bias of all that ask and all keys, rows first: A P+N' P+N."""
        found = windows(self.strips, self.stride).transpose(1, 2).flip(3).flatten(1, 2)  # A w' h' N -> A N' N
        prefix = self.prefix[:, None].expand(-1, found.shape[1], -1)
        return torch.cat([self.asked, torch.cat([prefix, found], dim=2)], dim=1)


def in_strips(table: Tensor, stride: int = 1) -> Tensor:
    """A table of offsets, query minus key and from the most negative, A 2h-1 2w-1 -> A w' 2h-1 w."""
    columns = (table.shape[2] + 1) // 2
    return table.unfold(2, columns, 1)[:, :, ::stride].transpose(1, 2).contiguous()


def windows(strips: Tensor, stride: int) -> Tensor:
    """What each row of queries reads of each strip, as a view: A w' 2h-1 k -> A w' h' hk."""
    rows, width = (strips.shape[2] + 1) // 2, strips.shape[3]
    return strips.flatten(2).unfold(2, rows * width, stride * width)


def backwards(tokens: Tensor, num_prefix: int) -> Tensor:
    """Turns the patches around, the last one first; the tokens before them stay: ... P+N d."""
    turned = tokens[..., num_prefix:, :].flip(-2)
    return torch.cat([tokens[..., :num_prefix, :], turned], dim=-2) if num_prefix else turned
