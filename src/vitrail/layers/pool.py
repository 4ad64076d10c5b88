"""Pooling of all tokens to one vector: class token, mean, both, or attention."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.errors import ConfigError
from vitrail.layers.attention import Site
from vitrail.layers.mlp import MLPConfig


class PoolConfig(Choice):
    """How the tokens are pooled to the input of the head."""

    needs_class_token = False

    def width(self, dim: int) -> int:
        """The width of the pooled vector."""
        return dim

    @abstractmethod
    def build(self, site: Site, mlp: MLPConfig) -> nn.Module:
        """The layer: prefix B P D and patches B N D -> B D."""


@dataclass(frozen=True, kw_only=True)
class ClassPoolConfig(PoolConfig, kind="class"):
    """The class token (arXiv:2010.11929)."""

    needs_class_token = True

    def build(self, site: Site, mlp: MLPConfig) -> nn.Module:
        """The layer: prefix B P D and patches B N D -> B D."""
        return ClassPool()


@dataclass(frozen=True, kw_only=True)
class MeanPoolConfig(PoolConfig, kind="mean"):
    """The mean of the patches."""

    def build(self, site: Site, mlp: MLPConfig) -> nn.Module:
        """The layer: prefix B P D and patches B N D -> B D."""
        return MeanPool()


@dataclass(frozen=True, kw_only=True)
class ClassMeanPoolConfig(PoolConfig, kind="class_mean"):
    """The class token and the mean of the patches, concatenated, as in DINOv2's classifier (arXiv:2304.07193)."""

    needs_class_token = True

    def width(self, dim: int) -> int:
        """The width of the pooled vector."""
        return 2 * dim

    def build(self, site: Site, mlp: MLPConfig) -> nn.Module:
        """The layer: prefix B P D and patches B N D -> B 2D."""
        return ClassMeanPool()


@dataclass(frozen=True, kw_only=True)
class AttentionPoolConfig(PoolConfig, kind="attention"):
    """One learned query attends to the patches, then an MLP (MAP head, arXiv:2106.04560)."""

    def build(self, site: Site, mlp: MLPConfig) -> nn.Module:
        """The layer: prefix B P D and patches B N D -> B D."""
        return AttentionPool(site, mlp)


class ClassPool(nn.Module):
    """The first prefix token."""

    def forward(self, prefix: Tensor, patches: Tensor) -> Tensor:
        """B P D and B N D -> B D."""
        return prefix[:, 0]


class MeanPool(nn.Module):
    """The mean over N."""

    def forward(self, prefix: Tensor, patches: Tensor) -> Tensor:
        """B P D and B N D -> B D."""
        return patches.mean(dim=1)


class ClassMeanPool(nn.Module):
    """The first prefix token and the mean over N, concatenated."""

    def forward(self, prefix: Tensor, patches: Tensor) -> Tensor:
        """B P D and B N D -> B 2D."""
        return torch.cat([prefix[:, 0], patches.mean(dim=1)], dim=1)


class AttentionPool(nn.Module):
    """A learned query over the patches, a projection, and a residual MLP."""

    def __init__(self, site: Site, mlp: MLPConfig) -> None:
        super().__init__()
        if site.dim % site.num_heads:
            raise ConfigError(f"attention pooling: dim {site.dim} is not divisible by num_heads {site.num_heads}")
        self.num_heads = site.num_heads
        self.query = nn.Parameter(torch.zeros(1, site.dim))
        self.q = nn.Linear(site.dim, site.dim)
        self.kv = nn.Linear(site.dim, 2 * site.dim)
        self.projection = nn.Linear(site.dim, site.dim)
        self.norm = site.norm.build(site.dim)
        self.mlp = mlp.build(site.dim, norm=site.norm)

    def forward(self, prefix: Tensor, patches: Tensor) -> Tensor:
        """B P D and B N D -> B D."""
        q, k, v = self._heads(patches)
        pooled = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # B A 1 d -> B 1 D
        pooled = self.projection(pooled)
        return (pooled + self.mlp(self.norm(pooled), (1, 1)))[:, 0]

    def weights(self, patches: Tensor) -> Tensor:
        """The explicit attention of the query over the patches: B A 1 N."""
        q, k, _ = self._heads(patches)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)

    def _heads(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (self.num_heads, -1)
        q = self.q(self.query).unflatten(1, heads).transpose(0, 1).expand(patches.shape[0], -1, -1, -1)  # B A 1 d
        k, v = self.kv(patches).unflatten(2, (2, *heads)).permute(2, 0, 3, 1, 4)  # 2 B A N d
        return q, k, v
