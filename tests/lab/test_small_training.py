import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.lab.pac_bayes import Subspace
from vitrail.lab.small_models import Classifier, small_cnn, small_vit
from vitrail.lab.small_training import Labelled, accuracy, batches, fashion, fit, outputs, rate_at


def test_the_embedded_images_are_normalised() -> None:
    train, test = fashion(torch.device("cpu"))
    assert train.images.shape == (12_000, 1, 28, 28)
    assert abs(float(train.images.mean())) < 1e-4
    assert math.isclose(float(train.images.std()), 1.0, rel_tol=1e-4)
    assert test.classes.bincount().tolist() == [200] * 10


def test_the_rate_rises_then_falls_to_zero() -> None:
    rates = [rate_at(step, steps=10, warm_up=4) for step in range(11)]
    assert rates[:4] == [0.2, 0.4, 0.6, 0.8]
    assert rates[4] == 1.0
    assert math.isclose(rates[7], 0.5)
    assert rates[10] == 0.0
    assert rate_at(0, steps=10, warm_up=0) == 1.0


def test_two_clusters_are_learned() -> None:
    torch.manual_seed(0)
    classes = torch.arange(40) % 2
    data = Labelled(torch.randn(40, 1, 2, 2) + 4 * classes[:, None, None, None], classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    losses = fit(model, batches(data, 20), steps=40, rate=0.1, warm_up=4)
    assert len(losses) == 40
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy(model, data) > 0.95


def test_parts_of_an_evaluation_join_and_the_mode_stays() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)).train()
    images = torch.rand(1100, 1, 2, 2)
    found = outputs(model, images)
    assert model.training
    assert torch.allclose(found, images.flatten(1) / (1 + 1e-5) ** 0.5)


class Waits(TorchDispatchMode):
    """Notes operators that read a number from the device, which a GPU cannot record."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def subjects() -> dict[str, nn.Module]:
    """Small models of the kinds that experiments train."""
    vit = small_vit(dim=16, depth=1, patch=4, image_size=8, channels=1, num_classes=3)
    cnn = small_cnn((8, 16), (1, 1, 2), channels=1, num_classes=3)
    return {
        "vit": Classifier(vit, 0.5, 0.5),
        "cnn": Classifier(cnn, 0.5, 0.5),
        "subspace": Subspace(Classifier(vit, 0.5, 0.5), 5),
    }


@pytest.mark.parametrize("name", ["vit", "cnn", "subspace"])
def test_forward_and_backward_never_read_a_number(name: str) -> None:
    model = subjects()[name].train()
    with Waits() as waits:
        loss = nn.functional.cross_entropy(model(torch.rand(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert waits.found == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["vit", "cnn", "subspace"])
def test_recorded_steps_are_the_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Labelled(torch.rand(64, 1, 8, 8, device="cuda"), torch.arange(64, device="cuda") % 3)

    def losses() -> Tensor:
        torch.manual_seed(0)
        return torch.tensor(fit(subjects()[name].cuda(), batches(data, 16), steps=120, rate=1e-3, warm_up=10))

    recorded = losses()
    monkeypatch.setattr("vitrail.lab.small_training._WORTH", 1000)
    torch.testing.assert_close(recorded, losses(), rtol=1e-2, atol=1e-2)
