"""The nearest neighbours of features among those of images with labels, which vote by their likeness."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError

_PAIRS = 1 << 24  # likenesses that are held at once


class Neighbours:
    """Weighted k-NN by cosine: each of the k nearest votes with exp(cosine / temperature) (DINO, arXiv:2104.14294)."""

    def __init__(self, bank: Tensor, labels: Tensor, *, num_classes: int, k: int, temperature: float) -> None:
        if not 1 <= k <= len(bank):
            raise ConfigError(f"k is {k}; there are {len(bank)} images to be near to, so it must be from 1 to that")
        self.bank, self.labels = F.normalize(bank.float(), dim=1), labels.to(bank.device)  # M D and M
        self.num_classes, self.k, self.temperature = num_classes, k, temperature

    def scores(self, features: Tensor) -> Tensor:
        """B D -> B K: the votes for each class."""
        queries = F.normalize(features.to(self.bank), dim=1)
        rows = max(_PAIRS // len(self.bank), 1)
        return torch.cat([self._votes(some) for some in queries.split(rows)])

    def _votes(self, queries: Tensor) -> Tensor:
        likeness, nearest = (queries @ self.bank.T).topk(self.k, dim=1)  # B k
        votes = torch.zeros(len(queries), self.num_classes, device=queries.device)
        # Relative to the likest, so that no temperature, however low, makes a vote too large or all of them nothing.
        weights = ((likeness - likeness[:, :1]) / self.temperature).exp()
        return votes.scatter_add_(1, self.labels[nearest], weights)
