"""Linear maps with a batch norm: statistics over all tokens, and one map after folding."""

import torch
from support.registered import randomise
from torch import nn

from vitrail.layers.linear_norm import LinearNorm, NormLinear


def test_statistics_are_over_all_tokens_of_the_batch():
    layer = LinearNorm(1, 1).train()
    layer.linear.weight.data.fill_(2.0)
    tokens = torch.tensor([[[1.0], [2.0]], [[3.0], [6.0]]])  # mapped: 2 4 6 12, mean 6, variance 14
    expected = (2 * tokens - 6) / (14 + 1e-5) ** 0.5
    torch.testing.assert_close(layer(tokens), expected)


def test_a_gain_of_zero_begins_as_nothing():
    assert not LinearNorm(3, 4, gain=0.0)(torch.randn(2, 5, 3)).any()


def test_both_become_one_linear_map():
    for layer, x in ((LinearNorm(3, 4), torch.randn(2, 5, 3)), (NormLinear(3, 4), torch.randn(5, 3))):
        randomise(layer).train()(x)  # moves the running statistics
        layer.eval()
        fused = layer.fused()
        assert isinstance(fused, nn.Linear)
        torch.testing.assert_close(fused(x), layer(x), atol=1e-6, rtol=1e-5)


def test_one_vector_is_normed_by_what_is_known():
    layer, x = randomise(NormLinear(3, 4)).train(), torch.randn(5, 3)
    layer(x)
    known = layer.norm.running_mean.clone()
    alone = layer(x[:1])
    torch.testing.assert_close(alone, layer.eval()(x[:1]))
    assert torch.equal(layer.norm.running_mean, known)
    alone.sum().backward()
    assert layer.norm.weight.grad.abs().max() > 0
