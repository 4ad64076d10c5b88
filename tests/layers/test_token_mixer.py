"""Pooling and separable convolution as mixers, against their formulas."""

import torch
from support.registered import randomise

from vitrail.layers.token_mixer import PoolMixer, SepConvMixer, pool_difference


def test_pooling_by_hand():
    maps = torch.arange(6.0).reshape(1, 1, 2, 3)
    # A corner sees four cells, the middle of an edge six; cells outside the map do not count.
    expected = torch.tensor([[2.0 - 0, 2.5 - 1, 3.0 - 2], [2.0 - 3, 2.5 - 4, 3.0 - 5]])
    torch.testing.assert_close(pool_difference(maps)[0, 0], expected)


def test_a_flat_map_pools_to_nothing():
    assert torch.equal(pool_difference(torch.full((1, 2, 4, 3), 7.0)), torch.zeros(1, 2, 4, 3))


def test_pool_mixer_counts_rows_first():
    tokens = torch.randn(2, 6, 5)
    maps = tokens.transpose(1, 2).reshape(2, 5, 2, 3)
    expected = pool_difference(maps).flatten(2).transpose(1, 2)
    torch.testing.assert_close(PoolMixer()(tokens, (2, 3)), expected)


def test_separable_convolution_by_hand():
    layer = randomise(SepConvMixer(4, kernel=3)).double()
    tokens, grid = torch.randn(1, 6, 4, dtype=torch.float64), (2, 3)
    scale, bias = layer.activation.scale, layer.activation.bias
    hidden = scale * (tokens @ layer.expand.weight.T).relu() ** 2 + bias  # 1 N 2D
    filtered = torch.zeros_like(hidden)
    for y in range(2):
        for x in range(3):
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= y + dy < 2 and 0 <= x + dx < 3:
                        weight = layer.filter.weight[:, 0, dy + 1, dx + 1]
                        filtered[:, y * 3 + x] += weight * hidden[:, (y + dy) * 3 + x + dx]
    torch.testing.assert_close(layer(tokens, grid), filtered @ layer.project.weight.T)
