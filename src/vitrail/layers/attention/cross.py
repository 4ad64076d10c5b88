"""Cross-attention: the queries of one sequence attend to another one, as in decoders and vision-language models."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.layers.dropout import Dropout


class CrossAttention(nn.Module):
    """Queries B M D and a context B N C -> B M D (arXiv:1706.03762).

    `padding` B N is True for padding tokens of the context, which are masked. If all are masked, the output of the
    heads is zero.
    """

    def __init__(
        self, dim: int, *, num_heads: int, context_dim: int | None = None, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(f"cross-attention: dim {dim} is not divisible by num_heads {num_heads}")
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim, bias=bias)
        self.kv = nn.Linear(context_dim or dim, 2 * dim, bias=bias)
        self.projection = nn.Linear(dim, dim)
        self.drop = Dropout(dropout)

    def forward(self, queries: Tensor, context: Tensor, padding: Tensor | None = None) -> Tensor:
        """B M D and B N C -> B M D."""
        q, k, v = self._heads(queries, context)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if padding is None else _seen(padding))
        return self.drop(self.projection(mixed.transpose(1, 2).flatten(2)))  # B A M d -> B M D

    def weights(
        self, queries: Tensor, context: Tensor, padding: Tensor | None = None, *, rows: Tensor | None = None
    ) -> Tensor:
        """The explicit attention over the context of the queries `rows` (all of them by default): B A R N."""
        q, k, _ = self._heads(queries if rows is None else queries[:, rows], context)
        logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if padding is None:
            return logits.softmax(dim=-1)
        hidden = ~_seen(padding)
        return logits.masked_fill(hidden, -float("inf")).softmax(dim=-1).masked_fill(hidden, 0.0)

    def contents(self, queries: Tensor, context: Tensor, padding: Tensor | None = None) -> Tensor:
        """The values of the context: B A N d; `weights` times them is the input of `projection`."""
        return self._heads(queries, context)[2]

    def _heads(self, queries: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = (self.q(queries), *self.kv(context).chunk(2, dim=-1))
        q, k, v = (part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in parts)  # B A . d
        return q, k, v


def _seen(padding: Tensor) -> Tensor:
    return ~padding[:, None, None]  # B 1 1 N
