"""Biased attention: the table by hand, special cases, resampling to another grid, and subsampled queries."""

import pytest
import torch
import torch.nn.functional as F
from support.registered import randomise

from vitrail.errors import ConfigError
from vitrail.layers.attention import BiasedConfig, Site, SubsampledAttention
from vitrail.layers.attention.biased import OffsetBias, offset_index


def test_index_by_hand():
    # 2 x 3 patches: entry |dy| * 3 + |dx|.
    expected = [
        [0, 1, 2, 3, 4, 5],
        [1, 0, 1, 4, 3, 4],
        [2, 1, 0, 5, 4, 3],
        [3, 4, 5, 0, 1, 2],
        [4, 3, 4, 1, 0, 1],
        [5, 4, 3, 2, 1, 0],
    ]
    assert offset_index((2, 3), 1).tolist() == expected
    assert offset_index((2, 3), 2).tolist() == [expected[0], expected[2]]  # row 0, columns 0 and 2


def test_the_bias_knows_no_direction():
    bias = OffsetBias(2, grid=(3, 4))
    torch.nn.init.normal_(bias.table)
    table = bias((3, 4))
    assert torch.equal(table, table.transpose(1, 2))
    assert torch.equal(table, table.flip(1, 2))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_resized_bias_is_that_of_the_new_grid(stride):
    bias = OffsetBias(2, grid=(3, 4), stride=stride)
    torch.nn.init.normal_(bias.table)
    expected = bias((5, 7))
    bias.resize((5, 7))
    assert bias.table.shape == (2, 35)
    torch.testing.assert_close(bias((5, 7)), expected)


def test_values_keys_and_bias_by_hand():
    layer = randomise(BiasedConfig(head_dim=3, value_ratio=2.0).build(Site(dim=8, num_heads=1, grid=(1, 2)))).double()
    layer.eval()
    tokens = torch.randn(1, 3, 8, dtype=torch.float64)  # a prefix token and two patches
    q, k, v = layer.qkv(tokens)[0].split([3, 3, 6], dim=-1)
    near, far = layer.bias.table[0]
    bias = torch.stack(
        [torch.zeros(3).double(), torch.stack([near * 0, near, far]), torch.stack([near * 0, far, near])]
    )
    weights = (q @ k.T / 3**0.5 + bias).softmax(dim=-1)
    torch.testing.assert_close(layer.weights(tokens, (1, 2))[0, 0], weights)
    torch.testing.assert_close(layer(tokens, (1, 2))[0], layer.projection(F.hardswish(weights @ v)[None])[0])


def test_a_huge_bias_leaves_each_patch_alone():
    layer = randomise(BiasedConfig().build(Site(dim=8, num_heads=2, grid=(2, 2)))).eval()
    layer.bias.table.data.fill_(-1e4)
    layer.bias.table.data[:, 0] = 0
    torch.testing.assert_close(layer.weights(torch.randn(1, 4, 8), (2, 2)), torch.eye(4).expand(1, 2, 4, 4))


def test_heads_must_divide_the_width_or_be_given():
    site = Site(dim=10, num_heads=4, grid=(2, 2))
    with pytest.raises(ConfigError, match=r"10 .*num_heads 4"):
        BiasedConfig().build(site)
    assert BiasedConfig(head_dim=3).build(site)(torch.randn(1, 4, 10), (2, 2)).shape == (1, 4, 10)


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (1, 1)])
def test_subsampling_keeps_every_other_query_and_all_keys(grid):
    layer = randomise(SubsampledAttention(6, 8, grid=grid, num_heads=1, head_dim=3, value_ratio=2.0)).double().eval()
    maps = torch.randn(2, 6, *grid, dtype=torch.float64)
    tokens = maps.flatten(2).transpose(1, 2)
    asking = maps[:, :, ::2, ::2].flatten(2).transpose(1, 2)
    k, v = layer.kv(tokens).split([3, 6], dim=-1)
    logits = layer.q(asking) @ k.transpose(1, 2) / 3**0.5 + layer.bias(grid)
    expected = layer.projection(F.hardswish(logits.softmax(dim=-1) @ v)).transpose(1, 2)
    coarse = ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
    torch.testing.assert_close(layer(maps), expected.unflatten(2, coarse))
