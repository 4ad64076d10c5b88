"""Attention whose queries and keys carry positions that the values do not, as in DETR (arXiv:2005.12872)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError


class PositionedAttention(nn.Module):
    """Queries B M D, keys B N D and values B N D -> B M D; positions are added by the caller.

    `mask`, M N or what broadcasts to B A M N, is True where a query may attend to a key; without one it may attend to
    all.
    """

    def __init__(self, dim: int, *, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(f"attention: dim {dim} is not divisible by num_heads {num_heads}")
        self.num_heads, self.dropout = num_heads, dropout
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.projection = nn.Linear(dim, dim)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """B M D, B N D, B N D -> B M D."""
        q, k, v = self._split(self.q(queries)), self._split(self.k(keys)), self._split(self.v(values))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.projection(mixed.transpose(1, 2).flatten(2))  # B A M d -> B M D

    def weights(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """The explicit attention of every query over the keys: B A M N."""
        q, k = self._split(self.q(queries)), self._split(self.k(keys))
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(dim=-1)

    def _split(self, part: Tensor) -> Tensor:
        return part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # B N Ad -> B A N d
