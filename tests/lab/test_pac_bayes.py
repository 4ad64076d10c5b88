import math
from dataclasses import replace

import torch

from vitrail.lab.fitting import Fit
from vitrail.lab.pac_bayes import PacBayes, Subspace, quantised
from vitrail.lab.pac_bayes_bounds import complexity, kl_inverse
from vitrail.lab.small_models import small_vit


def test_a_subspace_starts_at_the_model_and_moves_all_of_it() -> None:
    torch.manual_seed(0)
    model = small_vit(dim=16, depth=1, patch=4, image_size=8, channels=1, num_classes=3)
    subspace = Subspace(model, 5)
    images = torch.rand(2, 1, 8, 8)
    assert torch.allclose(subspace(images), model(images), atol=1e-6)
    assert [parameter.shape for parameter in subspace.parameters()] == [(5,)]
    with torch.no_grad():
        subspace.coordinates.copy_(torch.tensor([0.1, 0.0, 0.0, 0.0, 0.0]))
        way = subspace.get_buffer("ways")[:, 0]
        expected = torch.cat([parameter.flatten() for parameter in model.parameters()]) + 0.1 * way
        torch.nn.utils.vector_to_parameters(expected, model.parameters())
        assert torch.allclose(subspace(images), model(images), atol=1e-5)


def test_quantised_values_are_few_and_near() -> None:
    torch.manual_seed(0)
    values = torch.randn(200)
    symbols, rounded = quantised(values, 9)
    assert set(symbols) <= set(range(9))
    assert len(rounded.unique()) <= 9
    assert (rounded - values).square().mean() < 0.1 * values.square().mean()
    fine = quantised(values, 25)[1]
    assert (fine - values).square().mean() < (rounded - values).square().mean()


def test_a_tiny_run_has_bounds_above_its_errors() -> None:
    torch.manual_seed(0)
    few = Fit(steps=3, batch=16)
    settings = replace(PacBayes.quick, train=100, test=50, dim=16, depth=1, dimensions=(5, 10), how=few, plain=few)
    found = PacBayes().measure(settings, seed=0, device=torch.device("cpu"))
    best = found["best"]
    assert best["dimensions"] in (5, 10)
    assert found["subspace"] == {"chosen": best["dimensions"], "grid": [5, 10]}
    assert best["train"] < best["kl"] <= 1
    assert math.isclose(best["kl"], kl_inverse(best["train"], complexity(best["bits"]), 100, 0.05))
    assert found["plain"]["bits"] > 16 * 3000
