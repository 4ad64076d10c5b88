"""Pooling against values by hand."""

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.attention import Site
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.pool import AttentionPoolConfig, ClassMeanPoolConfig, ClassPoolConfig, MeanPoolConfig

DIM = 16


def make(config, num_heads=2):
    site = Site(dim=DIM, num_heads=num_heads, grid=(2, 3))
    return randomise(config.build(site, GeluMLPConfig())).double()


def draw():
    return torch.randn(2, 3, DIM, dtype=torch.float64), torch.randn(2, 6, DIM, dtype=torch.float64)


def test_class_mean_and_both_by_hand():
    prefix, patches = draw()
    first, mean = prefix[:, 0], sum(patches[:, n] for n in range(6)) / 6
    torch.testing.assert_close(make(ClassPoolConfig())(prefix, patches), first)
    torch.testing.assert_close(make(MeanPoolConfig())(prefix, patches), mean)
    torch.testing.assert_close(make(ClassMeanPoolConfig())(prefix, patches), torch.cat([first, mean], dim=1))


def test_attention_pool_is_torchs_attention_and_a_residual_mlp():
    layer, (prefix, patches) = make(AttentionPoolConfig()), draw()
    peer = nn.MultiheadAttention(DIM, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([layer.q.weight, layer.kv.weight]))
        peer.in_proj_bias.copy_(torch.cat([layer.q.bias, layer.kv.bias]))
        peer.out_proj.weight.copy_(layer.projection.weight)
        peer.out_proj.bias.copy_(layer.projection.bias)
    query = layer.query.expand(2, 1, DIM)
    pooled, weights = peer(query, patches, patches, average_attn_weights=False)
    expected = (pooled + layer.mlp(layer.norm(pooled), (1, 1)))[:, 0]
    torch.testing.assert_close(layer(prefix, patches), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(layer.weights(patches), weights, atol=1e-12, rtol=1e-12)
    assert layer.weights(patches).shape == (2, 2, 1, 6)


def test_attention_pool_names_heads_that_do_not_divide():
    with pytest.raises(ConfigError, match=r"16 .*num_heads 3"):
        make(AttentionPoolConfig(), num_heads=3)
