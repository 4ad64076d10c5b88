import pytest
import torch
from torch import nn

from vitrail.lab.attacks import fgsm, pgd


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))


def test_fgsm_of_a_linear_model_in_closed_form() -> None:
    """For two classes, the gradient of the loss of class 0 is a positive multiple of w_1 - w_0."""
    linear = nn.Linear(48, 2)
    images, labels = torch.full((3, 3, 4, 4), 0.5), torch.zeros(3, dtype=torch.long)
    found = fgsm(nn.Sequential(nn.Flatten(), linear), images, labels, 0.1)
    way = (linear.weight[1] - linear.weight[0]).sign().view(3, 4, 4)
    assert torch.allclose(found, (images + 0.1 * way).detach(), atol=1e-6)


def test_images_in_parts_get_the_gradients_of_the_whole(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = torch.rand(7, 3, 4, 4), torch.randint(5, (7,))
    whole = fgsm(model, images, labels, 0.1)
    monkeypatch.setattr("vitrail.lab.attacks._PIECE", 3)
    assert torch.equal(fgsm(model, images, labels, 0.1), whole)


def test_pgd_stays_near_raises_the_loss_and_does_better_than_fgsm(model: nn.Module) -> None:
    images, labels = torch.rand(64, 3, 4, 4), torch.randint(5, (64,))
    loss = nn.CrossEntropyLoss()
    attacks = {"fgsm": fgsm(model, images, labels, 0.1), "pgd": pgd(model, images, labels, 0.1, steps=20)}
    for found in attacks.values():
        assert (found - images).abs().max() <= 0.1 + 1e-6
        assert found.min() >= 0
        assert found.max() <= 1
    clean, once, often = (loss(model(given), labels) for given in (images, attacks["fgsm"], attacks["pgd"]))
    assert clean < once < often + 0.01


def test_weights_get_no_gradient(model: nn.Module) -> None:
    pgd(model, torch.rand(2, 3, 4, 4), torch.zeros(2, dtype=torch.long), 0.1)
    assert all(parameter.grad is None for parameter in model.parameters())
