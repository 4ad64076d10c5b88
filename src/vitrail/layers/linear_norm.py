"""Linear maps with a batch norm before or after, which fold into one linear map for inference."""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.batch_norm import SyncedBatchNorm
from vitrail.layers.fuse import Fusable, fold_batch_norm, fold_batch_norm_before


class LinearNorm(Fusable):
    """A linear map without a bias, then batch norm over all tokens of the batch: B N C -> B N D (arXiv:2104.01136).

    `gain` is the initial gain of the norm: with 0, a residual branch that ends here starts at zero.
    """

    def __init__(self, channels: int, dim: int, *, gain: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, dim, bias=False)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.constant_(self.norm.weight, gain)

    def forward(self, tokens: Tensor) -> Tensor:
        """B N C -> B N D."""
        mapped = self.linear(tokens)
        return self.norm(mapped.flatten(0, 1)).view_as(mapped)  # BN D -> B N D

    def fused(self) -> nn.Module:
        """A linear map with a bias."""
        return fold_batch_norm(self.linear, self.norm)


class NormLinear(Fusable):
    """Batch norm, then a linear map: B C -> B D (LeViT's head, arXiv:2104.01136)."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.linear = nn.Linear(channels, dim)

    def forward(self, vectors: Tensor) -> Tensor:
        """B C -> B D."""
        norm = self.norm
        if self.training and vectors.shape[0] == 1 and not isinstance(norm, SyncedBatchNorm):
            # torch raises an error for a single vector, which has no variance; an epoch may end with a batch of one.
            known = F.batch_norm(vectors, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
            return self.linear(known)
        return self.linear(norm(vectors))

    def fused(self) -> nn.Module:
        """A linear map."""
        return fold_batch_norm_before(self.norm, self.linear)
