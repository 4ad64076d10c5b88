"""Linear attention: the kernel is a product of query features and key features, so that keys are summed once."""

from abc import abstractmethod
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.patch import Grid


@dataclass(frozen=True, kw_only=True)
class LinearConfig(AttentionConfig, kind="linear"):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (Katharopoulos et al. 2020, arXiv:2006.16236)."""

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return LinearAttention(site)


class KernelAttention(MultiHead):
    """Attention by a kernel phi(q) . phi(k) >= 0, in time and memory linear in N: B P+N D -> B P+N D."""

    @abstractmethod
    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The features phi(q) and phi(k), B A P+N m; a factor of a row of phi(q), or of all phi(k), cancels out."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """B P+N D -> B P+N D."""
        q, k, v = self.heads(tokens)
        phi_q, phi_k = self.features(q, k)
        summary = phi_k.transpose(-2, -1) @ v.to(phi_k.dtype)  # B A m d
        total = phi_q @ phi_k.sum(dim=2).unsqueeze(-1)  # B A P+N 1
        return self.joined((phi_q @ summary / total).to(v.dtype))

    def weights(self, tokens: Tensor, grid: Grid, rows: Tensor | None = None) -> Tensor:
        """B A R P+N: the kernel of every pair, normalised."""
        q, k, _ = self.heads(tokens)
        phi_q, phi_k = self.features(q, k)
        kernel = (phi_q if rows is None else phi_q[:, :, rows]) @ phi_k.transpose(-2, -1)  # B A R P+N
        return (kernel / kernel.sum(dim=-1, keepdim=True)).to(q.dtype)


class LinearAttention(KernelAttention):
    """phi = elu + 1, which is positive and has no parameters."""

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """B A P+N d -> B A P+N d."""
        # The mean of the keys gives the same ratio as the sum, and does not overflow in half precision.
        return F.elu(q) + 1, (F.elu(k) + 1) / k.shape[2]
