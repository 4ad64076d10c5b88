"""Losses of many tasks as one, balanced by learned uncertainty (Kendall et al. 2018, arXiv:1705.07115)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitrail.tasks.task import Likelihood


class Uncertainty(nn.Module):
    """A learned s of each task: the sum of a exp(-s) L + b s, where a and b follow from the kind of its loss L.

    A task whose loss stays large gets a large s, and so a small weight; b s keeps all weights from falling to zero. s
    has the best value where a exp(-s) L = b, so that in the end each task has a share that does not depend on the
    scale of its loss.
    """

    def __init__(self, likelihoods: Mapping[str, Likelihood]) -> None:
        super().__init__()
        self.likelihoods = dict(likelihoods)
        self.s = nn.Parameter(torch.zeros(len(likelihoods)))

    def forward(self, losses: Mapping[str, Tensor], present: Mapping[str, Tensor | float]) -> Tensor:
        """One number to minimise; a task counts as `present` says: 0 where a batch has no image for it, else 1."""
        terms = []
        for s, (name, likelihood) in zip(self.s, self.likelihoods.items(), strict=True):
            terms.append(present[name] * (likelihood.loss * torch.exp(-s) * losses[name] + likelihood.log * s))
        return torch.stack(terms).sum()

    def weights(self) -> dict[str, Tensor]:
        """What each loss is multiplied with."""
        pairs = zip(self.s.detach().neg().exp().unbind(), self.likelihoods.items(), strict=True)
        return {name: likelihood.loss * weight for weight, (name, likelihood) in pairs}
