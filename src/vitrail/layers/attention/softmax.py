"""Multi-head softmax attention, with the fused kernel or explicitly."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Count, Positive, Rate
from vitrail.layers import kernels
from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.attention.by_rows import attend_by_strips
from vitrail.layers.dropout import dropout as drop_some
from vitrail.layers.dropout import quick
from vitrail.layers.joined_heads import joins, split_heads
from vitrail.layers.patch import Grid
from vitrail.layers.relative import RelativeBias, RelativeConfig
from vitrail.layers.rope import Rope, RopeConfig


@dataclass(frozen=True, kw_only=True)
class SoftmaxConfig(AttentionConfig, kind="softmax"):
    """softmax(q k / (temperature sqrt(d))) v over all pairs of tokens (arXiv:1706.03762).

    `bias` "qv": keys have no bias (BEiT, EVA); `qk_norm` normalises queries and keys per head (arXiv:2302.05442);
    `inner_norm` normalises the output of the heads before the projection (EVA-02 CLIP).
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


class SoftmaxAttention(MultiHead):
    """Every token attends to every other: B P+N D -> B P+N D."""

    positions = ("rope", "relative")

    def __init__(self, config: SoftmaxConfig, site: Site) -> None:
        super().__init__(site, head_dim=config.head_dim, bias=config.bias == "qkv")
        self.scale = self.head_dim**-0.5 / config.temperature
        self.dropout, self.fused, self.biased = config.dropout, config.fused, config.bias == "qkv"
        inner = self.num_heads * self.head_dim
        self.qv_bias = nn.Parameter(torch.zeros(2, inner)) if config.bias == "qv" else None
        self.q_norm = site.norm.build(self.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = site.norm.build(self.head_dim) if config.qk_norm else nn.Identity()
        self.rope: Rope | None = None
        self.relative: RelativeBias | None = None
        for position in site.positions:
            if isinstance(position, RopeConfig):
                self.rope = position.build(self.head_dim, grid=site.grid, num_prefix=site.num_prefix)
            elif isinstance(position, RelativeConfig):
                self.relative = position.build(self.num_heads, grid=site.grid, num_prefix=site.num_prefix)
        self.norm = site.norm.build(inner) if config.inner_norm else nn.Identity()

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        return self.drop(self.projection(self.inner(tokens, grid)))

    def inner(self, tokens: Tensor, grid: Grid) -> Tensor:
        """The input of the projection: B P+N D -> B P+N Ad."""
        if self._has_kernel(tokens):
            return self.norm(self._with_kernel(tokens))
        q, k, v = self._placed(tokens, grid)
        if self.relative is None or not self.fused:
            return self._concatenated(self._attend(q, k, v, self._bias(grid, q.dtype)))
        dropout = self.dropout if self.training else 0.0
        strips = self.relative.strips(grid)
        return self._concatenated(attend_by_strips(q, k, v, strips, scale=self.scale, dropout=dropout))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(q k + bias) v, projected: B A P+N d each, and a bias that broadcasts to B A P+N P+N -> B P+N D."""
        return self.joined(self._attend(q, k, v, bias))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(q k + bias) v: B A P+N d each, and a bias that broadcasts to B A P+N P+N -> B A P+N d."""
        dropout = self.dropout if self.training else 0.0
        if self.fused and not (dropout > 0 and quick(q)):  # the fused kernels of a CPU have no dropout
            # With a mask of three axes the CPU kernel takes more than twice as long.
            mask = bias[None] if bias is not None and bias.ndim == 3 else bias
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale)
        return drop_some(self.explicit(q, k, bias), dropout) @ v

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N for the queries `rows`, without dropout."""
        q, k, _ = self._placed(tokens, grid)
        bias = self._bias(grid, q.dtype)
        if rows is not None:
            q = q[:, :, rows]
            bias = None if bias is None else bias[:, rows]
        return self.explicit(q, k, bias)

    @property
    def readout(self) -> nn.Module:
        """The module after the heads: the inner norm, which may be the identity."""
        return self.norm

    def projected(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values, concatenated: B P+N D -> B P+N 3Ad."""
        qkv = self.qkv(tokens)
        if self.qv_bias is None:
            return qkv
        q_bias, v_bias = self.qv_bias
        return qkv + torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each, with the configured norm."""
        if self.biased and joins(self.qkv, tokens):
            q, k, v = split_heads(self.qkv, tokens, self.num_heads)
        else:
            q, k, v = super().heads(tokens)
        return self.q_norm(q), self.k_norm(k), v

    def joined(self, mixed: Tensor) -> Tensor:
        """The outputs of the heads B A P+N d, concatenated, with the configured norm, and projected: B P+N D."""
        return self.drop(self.projection(self._concatenated(mixed)))

    def _concatenated(self, mixed: Tensor) -> Tensor:
        """The outputs of the heads side by side, with the configured norm: B A P+N d -> B P+N Ad."""
        return self.norm(mixed.transpose(1, 2).flatten(2))

    def _placed(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, B A P+N d each, with the configured rotary positions."""
        q, k, v = self.heads(tokens)
        if self.rope is not None:
            q, k = self.rope(q, grid), self.rope(k, grid)
        return q, k, v

    def _has_kernel(self, tokens: Tensor) -> bool:
        """Whether the Triton kernel can be used: few tokens, no positions or norms inside of attention."""
        fits = self.rope is None and self.relative is None and isinstance(self.q_norm, nn.Identity) and self.fused
        fits = fits and (kernels.DROPOUT or not (self.training and self.dropout > 0))
        fits = fits and self.head_dim in kernels.WIDTHS
        return (
            fits and kernels.suits(tokens) and tokens.shape[1] <= kernels.SHORT
        )  # sizes last: a graph may leave them open

    def _with_kernel(self, tokens: Tensor) -> Tensor:
        """The outputs of the heads, concatenated: B P+N D -> B P+N Ad."""
        size = (1, tokens.shape[1])  # one window
        return kernels.window_attention(
            self.projected(tokens), None, num_heads=self.num_heads, grid=size, size=size, shift=(0, 0),
            scale=self.scale, dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def _bias(self, grid: Grid, dtype: torch.dtype) -> Tensor | None:
        return None if self.relative is None else self.relative(grid).to(dtype)

    def explicit(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        """The attention matrix: B A R d, B A N d -> B A R N."""
        logits = (q * self.scale) @ k.transpose(-2, -1)  # B A R N
        return (logits if bias is None else logits + bias).softmax(dim=-1)
