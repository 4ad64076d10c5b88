"""Performer: softmax attention approximated by positive random features (FAVOR+)."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.layers.attention.base import Attention, AttentionConfig, Site
from vitrail.layers.attention.linear import KernelAttention


@dataclass(frozen=True, kw_only=True)
class PerformerConfig(AttentionConfig, kind="performer"):
    """exp(q . k / sqrt(d)) as a mean over `features` random directions (Choromanski et al. 2021, arXiv:2009.14794).

    `orthogonal` directions, within each group of d, have less variance than independent ones.
    """

    features: Count = 256
    orthogonal: bool = True

    def build(self, site: Site) -> Attention:
        """The layer for one block."""
        return PerformerAttention(self, site)


class PerformerAttention(KernelAttention):
    """phi(x) = exp(w . x - |x|^2 / 2) for m directions w, so that the mean of phi(q) phi(k) is exp(q . k).

    The directions are drawn when the layer is built, and saved with the weights.
    """

    directions: Tensor

    def __init__(self, config: PerformerConfig, site: Site) -> None:
        super().__init__(site)
        directions = draw_directions(config.features, self.head_dim, orthogonal=config.orthogonal)
        self.register_buffer("directions", directions)

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """B A P+N d -> B A P+N m, in float32 or wider: exponentials are too coarse in bfloat16."""
        with _no_autocast(q.device.type):
            exact = torch.promote_types(q.dtype, torch.float32)
            scale, directions = self.head_dim**-0.25, self.directions.to(exact)  # m d
            q, k = q.to(exact) * scale, (k.to(exact) * scale).transpose(-2, -1)  # B A d P+N: tokens last, which is fast
            log_q = q @ directions.transpose(0, 1)  # B A P+N m; - |q|^2 / 2 is constant in a row and cancels out
            log_k = directions @ k - k.square().sum(dim=-2, keepdim=True) / 2  # B A m P+N
            # Each feature of the keys is normalised to a sum of 1 over the tokens; the factor moves to the queries,
            # whose rows are then normalised to a sum of 1: nothing overflows, and every denominator is 1.
            log_q = log_q + log_k.logsumexp(dim=-1).unsqueeze(-2)
            return log_q.softmax(dim=-1), log_k.softmax(dim=-1).transpose(-2, -1)


def _no_autocast(device: str) -> AbstractContextManager[object]:
    """Disables autocast; the device "meta" has no autocast."""
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def draw_directions(count: int, dim: int, *, orthogonal: bool, generator: torch.Generator | None = None) -> Tensor:
    """Normal vectors m d; if `orthogonal`, each group of d is orthogonal, with the lengths of normal vectors."""
    drawn = torch.randn(count, dim, generator=generator)
    if not orthogonal:
        return drawn
    groups = -(-count // dim)
    bases, triangles = torch.linalg.qr(torch.randn(groups, dim, dim, generator=generator))  # groups d d
    # QR chooses signs that depend on its input; multiplying by them makes all orientations equally likely.
    bases = bases * triangles.diagonal(dim1=1, dim2=2).sign()[:, None]
    return bases.flatten(0, 1)[:count] * drawn.norm(dim=1, keepdim=True)
