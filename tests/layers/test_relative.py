"""Relative positions: the index by brute force, and the bias."""

import itertools

import pytest
import torch
from support.registered import randomise

from vitrail.layers.position import resample
from vitrail.layers.relative import RelativeConfig, relative_index

GRIDS = [(2, 3), (4, 4), (1, 5)]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)
every_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])


def brute_force(grid, prefix):
    """One entry for each offset in row order; then prefix to patch, patch to prefix, prefix to prefix."""
    h, w = grid
    offsets = [(dy, dx) for dy in range(-h + 1, h) for dx in range(-w + 1, w)]
    tokens = [None] * prefix + list(itertools.product(range(h), range(w)))

    def entry(query, key):
        if query is None or key is None:
            return len(offsets) + (2 if query is key else 0 if query is None else 1)
        return offsets.index((query[0] - key[0], query[1] - key[1]))

    return [[entry(query, key) for key in tokens] for query in tokens]


@every_grid
@every_prefix
def test_index_by_brute_force(grid, prefix):
    assert relative_index(grid, prefix).tolist() == brute_force(grid, prefix)


@every_grid
@every_prefix
def test_every_entry_of_the_table_is_read(grid, prefix):
    layer = RelativeConfig().build(2, grid=grid, num_prefix=prefix)
    extra = 3 if prefix else 0
    assert layer.table.shape == ((2 * grid[0] - 1) * (2 * grid[1] - 1) + extra, 2)
    assert set(relative_index(grid, prefix).flatten().tolist()) == set(range(len(layer.table)))


@every_prefix
def test_bias_reads_the_table(prefix):
    layer = randomise(RelativeConfig().build(3, grid=(2, 3), num_prefix=prefix))
    bias, index = layer((2, 3)), brute_force((2, 3), prefix)
    assert bias.shape == (3, prefix + 6, prefix + 6)
    for query, key in itertools.product(range(prefix + 6), repeat=2):
        assert torch.equal(bias[:, query, key], layer.table[index[query][key]])


@every_prefix
def test_resize_resamples_offsets_and_keeps_the_prefix(prefix):
    layer = randomise(RelativeConfig().build(3, grid=(2, 3), num_prefix=prefix))
    before, elsewhere = layer.table.detach().clone(), layer((4, 4)).detach()
    layer.resize((4, 4))
    assert layer.table.shape == (49 + (3 if prefix else 0), 3)
    assert torch.equal(layer.table[49:], before[15:])
    torch.testing.assert_close(layer.table[:49], resample(before[:15], (3, 5), (7, 7)))
    torch.testing.assert_close(layer((4, 4)), elsewhere)


def test_a_fresh_bias_is_silent():
    assert not RelativeConfig().build(2, grid=(2, 2), num_prefix=1)((2, 2)).any()
