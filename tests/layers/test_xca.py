"""Cross-covariance attention: values by hand; it mixes channels, not tokens."""

import pytest
import torch
from support.registered import randomise
from support.scaling import growth

from vitrail.errors import Unsupported
from vitrail.layers.attention import Site, XCAConfig


def test_by_hand():
    layer = XCAConfig().build(Site(dim=2, num_heads=1, grid=(1, 2))).double()
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(2).repeat(3, 1))  # q = k = v = x
        layer.qkv.bias.zero_()
        layer.projection.weight.copy_(torch.eye(2))
        layer.projection.bias.zero_()
        layer.temperature.fill_(torch.tensor(3.0).log())
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]).double()
    # The channels (1, 0) and (0, 2) over two tokens have length 1 and 2 and are orthogonal: cosines 1 and 0, so that
    # softmax(log 3 * cosine) is 3/4 and 1/4.
    q, k, _ = layer.heads(tokens)
    expected = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double()
    torch.testing.assert_close(layer.channels(q, k)[0, 0], expected)
    torch.testing.assert_close(layer(tokens, (1, 2))[0], torch.tensor([[0.75, 0.25], [0.5, 1.5]]).double())


def test_the_length_of_queries_and_keys_does_not_matter():
    layer = randomise(XCAConfig().build(Site(dim=32, num_heads=2, grid=(2, 3)))).double()
    tokens = torch.randn(2, 6, 32).double()
    expected = layer(tokens, (2, 3))
    with torch.no_grad():
        layer.qkv.weight[:64] *= 7
        layer.qkv.bias[:64] *= 7
    torch.testing.assert_close(layer(tokens, (2, 3)), expected)


def test_heads_stay_apart():
    layer = randomise(XCAConfig().build(Site(dim=32, num_heads=2, grid=(2, 3))))
    q, k, _ = layer.heads(torch.randn(2, 6, 32))
    matrix = layer.channels(q, k)
    assert matrix.shape == (2, 2, 16, 16)
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(2, 2, 16))


def test_weights_are_refused_with_the_reason():
    layer = XCAConfig().build(Site(dim=32, num_heads=2, grid=(2, 3)))
    with pytest.raises(Unsupported, match="channels"):
        layer.weights(torch.randn(1, 6, 32), (2, 3))


def test_cost_is_linear():
    assert max(growth(XCAConfig())) < 4.01
