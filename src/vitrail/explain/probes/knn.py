"""Nearest neighbours: predictions from the targets of the most similar features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError

_PAIRS = 1 << 24  # similarities that are in memory at once


class Neighbours:
    """Weighted k-NN by cosine: each of the k nearest has the weight exp(cosine / temperature) (DINO, arXiv:2104.14294).

    `values` are class indices M, or numbers M K.
    """

    def __init__(self, bank: Tensor, values: Tensor, *, num_outputs: int, k: int, temperature: float) -> None:
        if not 1 <= k <= len(bank):
            raise ConfigError(f"k is {k}; it must be from 1 to {len(bank)}, the number of stored features")
        self.bank, self.values = F.normalize(bank.float(), dim=1), values.to(bank.device)  # M D and M or M K
        self.num_outputs, self.k, self.temperature = num_outputs, k, temperature

    def predict(self, features: Tensor) -> Tensor:
        """B D -> B K: the votes for each class, or the weighted means of the numbers."""
        queries = F.normalize(features.to(self.bank), dim=1)
        rows = max(_PAIRS // len(self.bank), 1)
        return torch.cat([self._predict(some) for some in queries.split(rows)])

    def _predict(self, queries: Tensor) -> Tensor:
        cosines, nearest = (queries @ self.bank.T).topk(self.k, dim=1)  # B k
        # Relative to the most similar, so that weights neither overflow nor all vanish at low temperatures.
        weights = ((cosines - cosines[:, :1]) / self.temperature).exp()
        if self.values.is_floating_point():
            values = self.values[nearest].to(weights)  # B k K
            return torch.einsum("bk,bkn->bn", weights, values) / weights.sum(dim=1, keepdim=True)
        votes = torch.zeros(len(queries), self.num_outputs, device=queries.device)
        return votes.scatter_add_(1, self.values[nearest], weights)
