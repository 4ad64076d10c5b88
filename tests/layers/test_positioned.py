"""Attention with positions in queries and keys alone."""

import pytest
import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.attention.positioned import PositionedAttention


def test_is_torchs_attention():
    torch.manual_seed(0)
    layer, peer = PositionedAttention(16, num_heads=4), nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([layer.q.weight, layer.k.weight, layer.v.weight]))
        peer.in_proj_bias.copy_(torch.cat([layer.q.bias, layer.k.bias, layer.v.bias]))
        peer.out_proj.weight.copy_(layer.projection.weight)
        peer.out_proj.bias.copy_(layer.projection.bias)
    queries, keys, values = torch.randn(2, 3, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    mask = torch.rand(3, 5) > 0.3
    mask[:, 0] = True
    expected, weights = peer(queries, keys, values, attn_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(layer(queries, keys, values, mask), expected)
    torch.testing.assert_close(layer.weights(queries, keys, values, mask), weights)
    assert not torch.allclose(layer(queries, keys, values), expected)


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigError, match="divisible"):
        PositionedAttention(10, num_heads=3)
