"""FAVOR+: its approximation of softmax attention, convergence, and numerical stability."""

import math

import pytest
import torch
from support.registered import randomise
from support.scaling import growth

from vitrail.layers.attention import PerformerConfig, Site, SoftmaxConfig
from vitrail.layers.attention.performer import PerformerAttention, draw_directions

SITE = Site(dim=16, num_heads=1, grid=(4, 4))


@torch.no_grad()
def errors(features: int, *, orthogonal: bool = True, draws: int = 128) -> float:
    """The error of the weights over some draws; logits are small, since the variance is exponential in them."""
    torch.manual_seed(0)
    exact = randomise(SoftmaxConfig().build(SITE)).double()
    tokens = 0.3 * torch.randn(1, 16, 16).double()
    layer = PerformerConfig(features=features, orthogonal=orthogonal).build(SITE).double()
    layer.load_state_dict(exact.state_dict() | {"directions": layer.directions})
    expected, found = exact.weights(tokens, (4, 4)), []
    for _ in range(draws):
        layer.directions.copy_(draw_directions(*layer.directions.shape, orthogonal=orthogonal))
        found.append((layer.weights(tokens, (4, 4)) - expected).square().mean())
    return math.sqrt(torch.stack(found).mean())


def test_converges_to_softmax_as_one_over_root_m():
    counts = [64, 256, 1024, 4096]
    logs = torch.tensor([[math.log(count), math.log(errors(count))] for count in counts])
    x, y = (logs - logs.mean(dim=0)).unbind(dim=1)
    assert -0.6 < (x @ y) / (x @ x) < -0.4
    assert logs[-1, 1].exp() < 2e-3


def test_orthogonal_directions_are_better_than_independent_ones():
    assert errors(32) < 0.95 * errors(32, orthogonal=False)


def test_directions_are_orthogonal_and_as_long_as_normal_ones():
    drawn = draw_directions(2000, 8, orthogonal=True, generator=torch.Generator().manual_seed(0))
    group = torch.nn.functional.normalize(drawn[:8], dim=1)
    torch.testing.assert_close(group @ group.T, torch.eye(8), atol=1e-5, rtol=0)
    assert drawn.norm(dim=1).square().mean() == pytest.approx(8, rel=0.05)  # chi squared of 8 degrees
    assert drawn.norm(dim=1).square().var() == pytest.approx(16, rel=0.2)


def test_the_estimate_of_the_kernel_has_no_bias():
    q, k = torch.tensor([0.5, -0.3, 0.2, 0.4]).double(), torch.tensor([0.1, 0.6, -0.4, 0.3]).double()
    w = draw_directions(200_000, 4, orthogonal=True, generator=torch.Generator().manual_seed(0)).double()
    phi = [(w @ x - x.square().sum() / 2).exp() for x in (q, k)]
    assert (phi[0] * phi[1]).mean().item() == pytest.approx((q @ k).exp().item(), rel=5e-3)


def test_logits_of_hundreds_stay_finite():
    layer = randomise(PerformerConfig(features=32).build(SITE))
    tokens = 60 * torch.randn(2, 16, 16)
    tokens.requires_grad_()
    mixed = layer(tokens, (4, 4))
    mixed.sum().backward()
    assert mixed.isfinite().all()
    assert tokens.grad.isfinite().all()
    exact = layer.double()(tokens.double(), (4, 4))
    torch.testing.assert_close(mixed.double(), exact, atol=1e-3 * exact.abs().max().item(), rtol=1e-3)


def test_directions_are_saved_with_the_weights():
    layer = randomise(PerformerConfig().build(SITE)).train()
    tokens = torch.randn(1, 16, 16)
    before = layer(tokens, (4, 4))
    assert torch.equal(layer(tokens, (4, 4)), before)
    assert "directions" in layer.state_dict()
    twin = PerformerConfig().build(SITE)
    assert isinstance(twin, PerformerAttention)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(tokens, (4, 4)), layer(tokens, (4, 4)))


def test_cost_is_linear():
    assert max(growth(PerformerConfig())) < 4.01
