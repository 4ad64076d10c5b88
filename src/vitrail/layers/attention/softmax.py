"""Multi-head softmax attention, by the fused kernel or step by step."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.attention.base import Attention, AttentionConfig, Site
from vitrail.layers.patch import Grid
from vitrail.layers.relative import RelativeBias, RelativeConfig
from vitrail.layers.rope import Rope, RopeConfig


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig(AttentionConfig, kind="softmax"):
    """softmax(q k / (temperature sqrt(d))) v over all pairs of tokens (arXiv:1706.03762).

    `bias` "qv" leaves the keys without one (BEiT, EVA); `qk_norm` normalises queries and keys per head
    (arXiv:2302.05442); `inner_norm` normalises the heads' output before the projection (EVA-02 CLIP).
    """

    head_dim: Count | None = None
    bias: Literal["qkv", "qv", "none"] = "qkv"
    qk_norm: bool = False
    temperature: Positive = 1.0
    inner_norm: bool = False
    dropout: Rate = 0.0
    fused: bool = True

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return SoftmaxAttention(self, site)


class SoftmaxAttention(Attention):
    """Every token attends to every other: B P+N D -> B P+N D."""

    def __init__(self, config: SoftmaxConfig, site: Site) -> None:
        super().__init__()
        self.num_heads, self.head_dim = site.num_heads, _head_dim(config, site)
        self.scale = self.head_dim**-0.5 / config.temperature
        self.dropout, self.fused = config.dropout, config.fused
        inner = self.num_heads * self.head_dim
        self.qkv = nn.Linear(site.dim, 3 * inner, bias=config.bias == "qkv")
        self.qv_bias = nn.Parameter(torch.zeros(2, inner)) if config.bias == "qv" else None
        self.q_norm = site.norm.build(self.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = site.norm.build(self.head_dim) if config.qk_norm else nn.Identity()
        self.rope, self.relative = self._positions(site)
        self.norm = site.norm.build(inner) if config.inner_norm else nn.Identity()
        self.projection = nn.Linear(inner, site.dim)
        self.drop = nn.Dropout(site.dropout)

    def _positions(self, site: Site) -> tuple[Rope | None, RelativeBias | None]:
        rope: Rope | None = None
        relative: RelativeBias | None = None
        for position in site.positions:
            if isinstance(position, RopeConfig):
                rope = position.build(self.head_dim, grid=site.grid, num_prefix=site.num_prefix)
            elif isinstance(position, RelativeConfig):
                relative = position.build(self.num_heads, grid=site.grid, num_prefix=site.num_prefix)
            else:
                raise Unsupported(f"softmax attention cannot use {position.kind} positions")
        return rope, relative

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self._heads(tokens, grid)
        bias = self._bias(grid, q.dtype)
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale)
        else:
            mixed = F.dropout(self._softmax(q, k, bias), dropout) @ v
        return self.drop(self.projection(self.norm(mixed.transpose(1, 2).flatten(2))))  # B A N d -> B N D

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N for the queries `rows`, without dropout."""
        q, k, _ = self._heads(tokens, grid)
        bias = self._bias(grid, q.dtype)
        if rows is not None:
            q = q[:, :, rows]
            bias = None if bias is None else bias[:, rows]
        return self._softmax(q, k, bias)

    def _heads(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each, normalised and turned as configured."""
        qkv = self.qkv(tokens)
        if self.qv_bias is not None:
            q_bias, v_bias = self.qv_bias
            qkv = qkv + torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
        # Chunks, not one permuted tensor: their gradients are joined by one copy in the backward pass instead of two.
        parts = qkv.chunk(3, dim=-1)
        q, k, v = (part.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2) for part in parts)  # B A N d
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = self.rope(q, grid), self.rope(k, grid)
        return q, k, v

    def _bias(self, grid: Grid, dtype: torch.dtype) -> Tensor | None:
        return None if self.relative is None else self.relative(grid).to(dtype)

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        logits = (q * self.scale) @ k.transpose(-2, -1)  # B A R N
        return (logits if bias is None else logits + bias).softmax(dim=-1)


def _head_dim(config: SoftmaxConfig, site: Site) -> int:
    if config.head_dim is not None:
        return config.head_dim
    if site.dim % site.num_heads:
        raise ConfigError(
            f"dim {site.dim} does not divide into {site.num_heads} heads; choose another num_heads, or set head_dim"
        )
    return site.dim // site.num_heads
