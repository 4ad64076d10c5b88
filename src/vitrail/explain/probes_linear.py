"""Linear probes: ridge regression from moments that are summed up batch by batch, and logistic regression by L-BFGS."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = tuple(10.0**power for power in range(-6, 3))  # of the squared weights of standardised features
_STEPS = 200  # of L-BFGS at most, for each penalty


class Moments:
    """What ridge regression needs of any number of features: sums and products, K classes, D D + K D numbers."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.products: Tensor | None = None  # D D
        self.sums: Tensor | None = None  # K D, of each class
        self.counts = torch.zeros(num_classes, dtype=torch.float64)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Takes in B D and B."""
        exact = features.to("cpu", torch.float64)
        labels = labels.to("cpu")
        of_class = F.one_hot(labels, self.num_classes).double()  # B K
        one = type(self)(self.num_classes)
        one.products, one.sums, one.counts = exact.T @ exact, of_class.T @ exact, of_class.sum(dim=0)
        self.merge(one)

    def merge(self, other: Self) -> None:
        """Takes in everything that another has taken in."""
        if other.products is not None and other.sums is not None:
            self.products = other.products if self.products is None else self.products + other.products
            self.sums = other.sums if self.sums is None else self.sums + other.sums
            self.counts = self.counts + other.counts

    def solve(self) -> "Ridge":
        """The ridge regressions of all penalties at once."""
        assert self.products is not None and self.sums is not None  # noqa: S101  (probes refuse empty data)
        count = self.counts.sum()
        mean, share = self.sums.sum(dim=0) / count, self.counts / count  # D, K
        covariance = self.products / count - torch.outer(mean, mean)
        scale = covariance.diagonal().clamp_min(0).sqrt()
        scale = torch.where(scale > 1e-10 * (1 + mean.abs()), scale, torch.inf)  # what never changes has no say
        cross = (self.sums / count - torch.outer(share, mean)) / scale  # K D
        values, vectors = torch.linalg.eigh(covariance / torch.outer(scale, scale))
        return Ridge(mean, vectors / scale[:, None], values.clamp_min(0), vectors.T @ cross.T, share)


class Ridge(NamedTuple):
    """Ridge regression to one-hot labels on standardised features, for every penalty (Hoerl and Kennard 1970).

    The loss is the mean squared error plus the penalty times the squared weights; the bias is free.
    """

    mean: Tensor  # D
    basis: Tensor  # D D: features to principal directions
    values: Tensor  # D: their variances
    target: Tensor  # D K
    bias: Tensor  # K

    def scores(self, features: Tensor, penalty: float) -> Tensor:
        """B D -> B K; the largest is the answer."""
        turned = (features.to("cpu", torch.float64) - self.mean) @ self.basis  # B D
        return turned / (self.values + penalty) @ self.target + self.bias


class Logistic(NamedTuple):
    """Multinomial logistic regression on standardised features."""

    mean: Tensor  # D
    weight: Tensor  # D K, of features as they come
    bias: Tensor  # K

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, num_classes: int, penalties: Sequence[float]) -> list[Self]:
        """One for each penalty, M D and M: mean cross entropy plus half the penalty times the squared weights.

        Each begins where the one before ended, so penalties had best fall.
        """
        exact = features.to("cpu", torch.float64)
        mean, scale = exact.mean(dim=0), exact.std(dim=0, correction=0)
        scale = torch.where(scale > 1e-10 * (1 + mean.abs()), scale, torch.inf)
        inputs, labels = (exact - mean) / scale, labels.to("cpu")
        weight = torch.zeros(features.shape[1], num_classes, dtype=torch.float64)
        bias = torch.zeros(num_classes, dtype=torch.float64)
        found = []
        for penalty in penalties:
            weight, bias = _minimise(inputs, labels, weight, bias, penalty)
            found.append(cls(mean, weight / scale[:, None], bias))
        return found

    def scores(self, features: Tensor) -> Tensor:
        """B D -> B K: logits."""
        return (features.to("cpu", torch.float64) - self.mean) @ self.weight + self.bias


@torch.enable_grad()
def _minimise(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    steps = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        steps.zero_grad()
        value = F.cross_entropy(inputs @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    steps.step(loss)
    return weight.detach(), bias.detach()
