"""Linear probes: ridge regression from moments that are added up batch by batch, and logistic regression by L-BFGS."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = tuple(10.0**power for power in range(-6, 3))  # of the squared weights of standardised features
_MAX_STEPS = 200  # of L-BFGS for each penalty


class Moments:
    """What ridge regression needs of any number of features B D and targets B K: sums and products."""

    def __init__(self) -> None:
        self.products: Tensor | None = None  # D D
        self.cross: Tensor | None = None  # K D
        self.sums = torch.zeros(())  # D
        self.targets = torch.zeros(())  # K
        self.count = 0

    def update(self, features: Tensor, targets: Tensor) -> None:
        """Adds B D and B K."""
        exact, targets = features.to("cpu", torch.float64), targets.to("cpu", torch.float64)
        batch = type(self)()
        batch.products, batch.cross = exact.T @ exact, targets.T @ exact
        batch.sums, batch.targets, batch.count = exact.sum(dim=0), targets.sum(dim=0), len(exact)
        self.merge(batch)

    def merge(self, other: Self) -> None:
        """Adds everything that was added to another."""
        if other.products is not None and other.cross is not None:
            self.products = other.products if self.products is None else self.products + other.products
            self.cross = other.cross if self.cross is None else self.cross + other.cross
            self.sums, self.targets = self.sums + other.sums, self.targets + other.targets
            self.count += other.count

    def solve(self) -> "Ridge":
        """The ridge regressions of all penalties at once."""
        assert self.products is not None and self.cross is not None  # noqa: S101  (probes refuse empty data)
        mean, bias = self.sums / self.count, self.targets / self.count  # D, K
        covariance = self.products / self.count - torch.outer(mean, mean)
        scale = covariance.diagonal().clamp_min(0).sqrt()
        scale = torch.where(scale > 1e-10 * (1 + mean.abs()), scale, torch.inf)  # constant features get no weight
        cross = (self.cross / self.count - torch.outer(bias, mean)) / scale  # K D
        values, vectors = torch.linalg.eigh(covariance / torch.outer(scale, scale))
        return Ridge(mean, vectors / scale[:, None], values.clamp_min(0), vectors.T @ cross.T, bias)


class Ridge(NamedTuple):
    """Ridge regression on standardised features, for every penalty (Hoerl and Kennard 1970).

    The loss is the mean squared error plus the penalty times the squared weights; the bias is not penalised.
    """

    mean: Tensor  # D
    basis: Tensor  # D D: features to principal directions
    values: Tensor  # D: their variances
    target: Tensor  # D K
    bias: Tensor  # K

    def predict(self, features: Tensor, penalty: float) -> Tensor:
        """B D -> B K."""
        rotated = (features.to("cpu", torch.float64) - self.mean) @ self.basis  # B D
        return rotated / (self.values + penalty) @ self.target + self.bias


class Logistic(NamedTuple):
    """Multinomial logistic regression on standardised features."""

    mean: Tensor  # D
    weight: Tensor  # D K, of features that are not standardised
    bias: Tensor  # K

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, num_classes: int, penalties: Sequence[float]) -> list[Self]:
        """One for each penalty, M D and M: mean cross entropy plus half the penalty times the squared weights.

        Each starts from the solution of the one before, so penalties should decrease.
        """
        exact = features.to("cpu", torch.float64)
        mean, scale = exact.mean(dim=0), exact.std(dim=0, correction=0)
        scale = torch.where(scale > 1e-10 * (1 + mean.abs()), scale, torch.inf)
        inputs, labels = (exact - mean) / scale, labels.to("cpu")
        weight = torch.zeros(features.shape[1], num_classes, dtype=torch.float64)
        bias = torch.zeros(num_classes, dtype=torch.float64)
        fitted = []
        for penalty in penalties:
            weight, bias = _minimise(inputs, labels, weight, bias, penalty)
            fitted.append(cls(mean, weight / scale[:, None], bias))
        return fitted

    def predict(self, features: Tensor) -> Tensor:
        """B D -> B K: logits."""
        return (features.to("cpu", torch.float64) - self.mean) @ self.weight + self.bias


@torch.enable_grad()
def _minimise(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    steps = torch.optim.LBFGS(
        [weight, bias], max_iter=_MAX_STEPS, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        steps.zero_grad()
        value = F.cross_entropy(inputs @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    steps.step(loss)
    return weight.detach(), bias.detach()
