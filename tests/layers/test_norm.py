"""Normalisation by its formulas."""

import pytest
import torch
from registered import randomise

from vitrail.layers.norm import LayerNormConfig, RMSNormConfig


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
