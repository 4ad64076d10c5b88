"""Losses balanced by learned uncertainty."""

import math

import pytest
import torch

from vitrail.tasks.many.uncertainty import Uncertainty
from vitrail.tasks.task import CLASSES, DISTANCES, SQUARES, Likelihood

KINDS = {"classes": CLASSES, "squares": SQUARES, "distances": DISTANCES}


def test_at_first_losses_are_added_as_they_are() -> None:
    losses = {name: torch.tensor(float(number)) for number, name in enumerate(KINDS, start=1)}
    total = Uncertainty(KINDS)(losses, dict.fromkeys(KINDS, 1.0))
    assert total.item() == pytest.approx(1 + 2 / 2 + 3)  # a square counts half, as in the density of a Gaussian


@pytest.mark.parametrize("loss", [0.02, 1.0, 40.0])
@pytest.mark.parametrize(("kind", "share"), [(CLASSES, 0.5), (SQUARES, 0.5), (DISTANCES, 1.0)])
def test_each_task_ends_with_the_same_share_whatever_its_scale(kind: Likelihood, share: float, loss: float) -> None:
    balance = Uncertainty({"one": kind})
    with torch.no_grad():
        balance.s.fill_(math.log(kind.loss * loss / kind.log))
    balance({"one": torch.tensor(loss)}, {"one": 1.0}).backward()
    assert balance.s.grad is not None
    assert balance.s.grad.item() == pytest.approx(0, abs=1e-6)  # the best s
    assert balance.weights()["one"].item() * loss == pytest.approx(share)


def test_the_negative_log_likelihood_of_a_gaussian_and_of_a_laplace_distribution() -> None:
    balance = Uncertainty({"squares": SQUARES, "distances": DISTANCES})
    with torch.no_grad():
        balance.s.copy_(torch.tensor([0.7, -0.3]))
    error = torch.tensor(1.3)
    gaussian = -torch.distributions.Normal(0.0, math.exp(0.35)).log_prob(error) - 0.5 * math.log(2 * math.pi)
    laplace = -torch.distributions.Laplace(0.0, math.exp(-0.3)).log_prob(error) - math.log(2)
    total = balance({"squares": error**2, "distances": error}, {"squares": 1.0, "distances": 1.0})
    assert total.item() == pytest.approx((gaussian + laplace).item())


def test_a_task_without_images_learns_nothing() -> None:
    balance = Uncertainty({"one": CLASSES, "other": CLASSES})
    balance({"one": torch.tensor(2.0), "other": torch.tensor(0.0)}, {"one": 1.0, "other": 0.0}).backward()
    assert balance.s.grad is not None
    assert balance.s.grad.tolist() == [-1.5, 0.0]
