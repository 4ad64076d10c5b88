"""Cross-covariance attention: channels attend to channels, so that the cost is linear in the number of tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import Unsupported
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.patch import Grid


@dataclass(frozen=True, kw_only=True)
class XCAConfig(AttentionConfig, kind="xca"):
    """softmax(temperature * cos(q, k)) v for all d x d pairs of channels (El-Nouby et al. 2021, arXiv:2106.09681)."""

    has_weights = False

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return XCAttention(site)


class XCAttention(MultiHead):
    """Every channel attends to the channels of its head, over all tokens: B P+N D -> B P+N D."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.temperature = nn.Parameter(torch.ones(self.num_heads, 1, 1))

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self.heads(tokens)
        mixed = self.channels(q, k).to(v.dtype) @ v.transpose(-2, -1)  # B A d d @ B A d P+N
        return self.joined(mixed.transpose(-2, -1))

    def channels(self, q: Tensor, k: Tensor) -> Tensor:
        """The attention matrix of channels, B A d d, from queries and keys B A P+N d."""
        q, k = F.normalize(q, dim=2), F.normalize(k, dim=2)
        return (self.temperature * (q.transpose(-2, -1) @ k)).softmax(dim=-1)

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """Raises Unsupported: there is no such matrix."""
        raise Unsupported("XCAttention mixes channels, not tokens: its matrix is d x d for each head (see `channels`)")
