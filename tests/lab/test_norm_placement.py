import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from vitrail.lab.norm_placement import NormPlacementSettings, Placement, _look, _model, _power

SETTINGS = NormPlacementSettings(dim=8, num_heads=2, patch=14)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_norms_and_gradients_are_those_of_the_blocks(placement: Placement) -> None:
    torch.manual_seed(0)
    model, images, classes = _model(SETTINGS, placement, 2), torch.randn(4, 1, 28, 28), torch.arange(4)
    found = _look(model, images, classes)
    tokens, grid = model.requires_grad_(False).embed(images)
    for index, block in enumerate(model.blocks):
        sums = tokens + block.get_submodule("attention")(block.read(tokens), grid)  # type: ignore[operator]
        given = tokens if placement == "pre" else sums
        tokens = block(tokens, grid)
        assert math.isclose(found["stream"][index], float(tokens.norm(dim=-1).mean()), rel_tol=1e-5)
        assert found["sums"][index] >= float(given.norm(dim=-1).mean()) * (1 - 1e-5)
    model.requires_grad_()
    weights = list(model.blocks[0].parameters())
    gradients = torch.autograd.grad(cross_entropy(model(images), classes), weights)
    assert math.isclose(found["gradients"][0], math.sqrt(sum(float(g.square().sum()) for g in gradients)), rel_tol=1e-4)


def test_post_norm_tokens_have_the_root_of_the_width_as_their_norm() -> None:
    model = _model(SETTINGS, "post", 3)
    found = _look(model, torch.randn(2, 1, 28, 28), torch.zeros(2, dtype=torch.long))
    assert all(math.isclose(norm, math.sqrt(8), rel_tol=1e-3) for norm in found["stream"])


def test_the_exponent_of_a_root_is_a_half() -> None:
    assert math.isclose(_power([math.sqrt(block) for block in range(1, 25)]), 0.5, rel_tol=1e-6)
