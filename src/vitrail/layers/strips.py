"""A bias by the offset of two patches, laid out so that the mask of attention is a view of it, not a copy."""

from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.layers.patch import Grid


class Strips(NamedTuple):
    """The bias of all pairs of patches in compact form: one strip for each column of queries.

    A strip has a row of keys for each of the 2h-1 vertical offsets. With the keys in reverse order, from the last patch
    to the first, the bias of a row of queries is a window of h such rows, and that of the next row starts one row
    later. Queries are on every `stride`-th row and column of the map: on a grid of h' by w'.
    """

    strips: Tensor  # A w' 2h-1 w
    prefix: Tensor  # A P: the bias of all patches for the keys of the P prefix tokens
    prefix_queries: Tensor  # A P P+N: the bias of the queries of the prefix tokens
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
        """The bias of some rows of queries, column by column, for all keys in reverse order: A w'R P+N."""
        bias = windows(self.strips, self.stride)[:, :, first:last]  # A w' R N
        prefix = self.prefix[:, None, None].expand(*bias.shape[:3], -1)
        return torch.cat([prefix, bias], dim=3).flatten(1, 2)

    def whole(self) -> Tensor:
        """The bias of all queries and all keys, row by row: A P+N' P+N."""
        bias = windows(self.strips, self.stride).transpose(1, 2).flip(3).flatten(1, 2)  # A w' h' N -> A N' N
        prefix = self.prefix[:, None].expand(-1, bias.shape[1], -1)
        return torch.cat([self.prefix_queries, torch.cat([prefix, bias], dim=2)], dim=1)


def in_strips(table: Tensor, stride: int = 1) -> Tensor:
    """A table of offsets (query minus key, ascending) as strips: A 2h-1 2w-1 -> A w' 2h-1 w."""
    columns = (table.shape[2] + 1) // 2
    return table.unfold(2, columns, 1)[:, :, ::stride].transpose(1, 2).contiguous()


def windows(strips: Tensor, stride: int) -> Tensor:
    """The window of each strip for each row of queries, as a view: A w' 2h-1 k -> A w' h' hk."""
    rows, width = (strips.shape[2] + 1) // 2, strips.shape[3]
    return strips.flatten(2).unfold(2, rows * width, stride * width)


def backwards(tokens: Tensor, num_prefix: int) -> Tensor:
    """Reverses the order of the patches; the prefix tokens stay: ... P+N d."""
    turned = tokens[..., num_prefix:, :].flip(-2)
    return torch.cat([tokens[..., :num_prefix, :], turned], dim=-2) if num_prefix else turned
