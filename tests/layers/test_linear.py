"""Linear attention: values by hand, and a cost that is linear."""

import torch
from support.registered import randomise
from support.scaling import cost, growth

from vitrail.layers.attention import LinearConfig, Site, SoftmaxConfig


def test_by_hand():
    layer = LinearConfig().build(Site(dim=2, num_heads=1, grid=(1, 2))).double()
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(2).repeat(3, 1))  # q = k = v = x
        layer.projection.weight.copy_(torch.eye(2))
        layer.qkv.bias.zero_()
        layer.projection.bias.zero_()
    tokens = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]).double()
    # phi(0, 0) = (1, 1) and phi(1, 0) = (2, 1): the kernel is ((2, 3), (3, 5)).
    expected = torch.tensor([[2 / 5, 3 / 5], [3 / 8, 5 / 8]]).double()
    torch.testing.assert_close(layer.weights(tokens, (1, 2))[0, 0], expected)
    torch.testing.assert_close(layer(tokens, (1, 2))[0], torch.tensor([[0.6, 0.0], [0.625, 0.0]]).double())


def test_forward_is_what_the_weights_say():
    layer = randomise(LinearConfig().build(Site(dim=32, num_heads=2, grid=(3, 4)))).double()
    tokens = torch.randn(2, 12, 32).double()
    v = layer.heads(tokens)[2]
    torch.testing.assert_close(layer(tokens, (3, 4)), layer.joined(layer.weights(tokens, (3, 4)) @ v))


def test_half_precision_does_not_overflow():
    layer = randomise(LinearConfig().build(Site(dim=32, num_heads=2, grid=(64, 64))))
    tokens = 10 * torch.rand(1, 4096, 32)
    assert layer.half()(tokens.half(), (64, 64)).isfinite().all()


def test_cost_is_linear():
    assert max(growth(LinearConfig())) < 4.01
    assert growth(SoftmaxConfig()).macs > 10
    assert cost(LinearConfig(), 64)[0] < cost(SoftmaxConfig(), 64)[0] / 10
