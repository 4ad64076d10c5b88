"""Class attention: only the class token attends, to all tokens (CaiT, arXiv:2103.17239)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.attention.base import MultiHead
from vitrail.layers.patch import Grid


class ClassAttention(MultiHead):
    """The first token attends to all tokens, the others are not changed: B P+N D -> B P+N D."""

    maps = ("q", "kv")
    q: nn.Linear
    kv: nn.Linear

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        k, v = self.kv(tokens).chunk(2, dim=-1)
        mixed = F.scaled_dot_product_attention(self.split(self.q(tokens[:, :1])), self.split(k), self.split(v))
        return torch.cat([self.joined(mixed), tokens[:, 1:]], dim=1)

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N; all tokens but the class token attend only to themselves."""
        index = torch.arange(tokens.shape[1], device=tokens.device)
        rows = index if rows is None else rows
        q, k = self.split(self.q(tokens[:, :1])), self.split(self.kv(tokens).chunk(2, dim=-1)[0])
        weights = (q * self.head_dim**-0.5 @ k.transpose(-2, -1)).softmax(dim=-1)  # B A 1 P+N
        return torch.where((rows == 0)[:, None], weights, (rows[:, None] == index).to(weights))

    def contents(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The values: B P+N D -> B A P+N d; only the class token uses them."""
        return self.split(self.kv(tokens).chunk(2, dim=-1)[1])
