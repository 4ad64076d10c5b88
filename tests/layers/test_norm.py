"""Normalisation against its formulas."""

import pytest
import torch
from support.registered import randomise

from vitrail.layers.norm import GroupNormConfig, LayerNormConfig, RMSNormConfig, UnbiasedLayerNormConfig


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_layer_norm_by_hand(eps):
    layer = randomise(LayerNormConfig(eps=eps).build(8)).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    centred = x - x.mean(dim=1, keepdim=True)
    expected = centred / (centred.square().mean(dim=1, keepdim=True) + eps).sqrt() * layer.weight + layer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm_by_hand(eps):
    layer = randomise(RMSNormConfig(eps=eps).build(8)).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x / (x.square().mean(dim=1, keepdim=True) + eps).sqrt() * layer.weight)


def test_unbiased_layer_norm_is_a_layer_norm_whose_bias_is_zero():
    layer, full = randomise(UnbiasedLayerNormConfig().build(8)), LayerNormConfig().build(8)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    full.weight = layer.weight
    x = torch.randn(3, 8)
    torch.testing.assert_close(layer(x), full(x))


@pytest.mark.parametrize("bias", [True, False])
def test_group_norm_is_torchs_with_one_group(bias):
    layer = randomise(GroupNormConfig(bias=bias).build(8)).double()
    assert (layer.bias is not None) == bias
    tokens = torch.randn(2, 6, 8, dtype=torch.float64)
    theirs = torch.nn.functional.group_norm(tokens.transpose(1, 2), 1, layer.weight, layer.bias)  # B D N
    torch.testing.assert_close(layer(tokens), theirs.transpose(1, 2))
