"""Positions: golden values, published formulas, and resampling."""

import math

import numpy as np
import pytest
import torch
from support.registered import randomise

from vitrail.errors import ConfigError
from vitrail.layers.position import (
    FactoredConfig,
    LearnedConfig,
    SinCos1DConfig,
    SinCos2DConfig,
    frequencies,
    resample,
)

GRIDS = [(3, 5), (4, 4), (1, 6)]


def test_frequencies_by_hand():
    assert frequencies(4, 10_000.0).tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    assert frequencies(3, 100.0, endpoint=True).tolist() == pytest.approx([1, 0.1, 0.01])
    assert frequencies(1, 100.0, endpoint=True).tolist() == [1]


def test_sincos_1d_by_hand():
    table = SinCos1DConfig(theta=100.0).build(4, grid=(1, 3), num_prefix=0).table
    rows = [[math.sin(n), math.sin(n / 10), math.cos(n), math.cos(n / 10)] for n in range(3)]
    torch.testing.assert_close(table, torch.tensor(rows))


def test_sincos_2d_by_hand():
    table = SinCos2DConfig(theta=100.0).build(8, grid=(2, 3), num_prefix=0).table
    y, x = 1, 2  # the last of six
    expected = [f(v * w) for v in (x, y) for f in (math.sin, math.cos) for w in (1, 0.1)]
    torch.testing.assert_close(table[5], torch.tensor(expected))


def mae_sincos_2d(dim, grid):
    """The table of MAE as in its code, in numpy: half of the width for each axis."""

    def one_axis(width, places):
        omega = 1 / 10_000 ** (np.arange(width // 2, dtype=np.float64) / (width / 2))
        angles = places.reshape(-1)[:, None] * omega[None]
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    columns, rows = np.meshgrid(np.arange(grid[1], dtype=np.float32), np.arange(grid[0], dtype=np.float32))
    return np.concatenate([one_axis(dim // 2, columns), one_axis(dim // 2, rows)], axis=1)


def simple_vit_sincos_2d(dim, grid):
    """The table of SimpleViT as in its appendix, in numpy."""
    y, x = np.mgrid[: grid[0], : grid[1]]
    omega = np.arange(dim // 4) / (dim // 4 - 1)
    omega = 1.0 / (10_000**omega)
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("endpoint", "formula"), [(False, mae_sincos_2d), (True, simple_vit_sincos_2d)])
def test_sincos_2d_is_the_published_one(grid, endpoint, formula):
    table = SinCos2DConfig(endpoint=endpoint).build(32, grid=grid, num_prefix=0).table
    torch.testing.assert_close(table.double(), torch.from_numpy(formula(32, grid)), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("config", "dim"), [(SinCos1DConfig(), 7), (SinCos2DConfig(), 30)], ids=["1d", "2d"])
def test_sincos_names_a_width_that_does_not_divide(config, dim):
    with pytest.raises(ConfigError, match=f"dim is {dim}"):
        config.build(dim, grid=(2, 2), num_prefix=0)


def test_factored_is_row_plus_column():
    layer = randomise(FactoredConfig().build(8, grid=(3, 2), num_prefix=1))
    tokens = layer(torch.zeros(1, 7, 8), (3, 2))[0]
    assert not tokens[0].any()
    for row in range(3):
        for column in range(2):
            expected = layer.rows[row] + layer.columns[column]
            torch.testing.assert_close(tokens[1 + 2 * row + column], expected)


@pytest.mark.parametrize(("prefix", "rows"), [(True, 5 + 6), (False, 6)])
def test_learned_prefix_positions_are_a_choice(prefix, rows):
    layer = randomise(LearnedConfig(prefix=prefix).build(8, grid=(3, 2), num_prefix=5))
    assert layer.table.shape == (rows, 8)
    added = layer(torch.zeros(1, 11, 8), (3, 2))[0]
    torch.testing.assert_close(added[-rows:], layer.table)
    assert added[:5].any() == prefix


def test_learned_resize_leaves_the_prefix_alone():
    layer = randomise(LearnedConfig().build(8, grid=(3, 2), num_prefix=5))
    before = layer.table.detach().clone()
    layer.resize((6, 4))
    assert layer.table.shape == (5 + 24, 8)
    assert torch.equal(layer.table[:5], before[:5])
    torch.testing.assert_close(layer.table[5:], resample(before[5:], (3, 2), (6, 4)))


def test_resample_to_the_same_grid_is_the_same_table():
    table = torch.randn(6, 4)
    assert resample(table, (3, 2), (3, 2)) is table


@pytest.mark.parametrize("new", [(6, 4), (2, 7), (1, 1)], ids=str)
def test_resample_keeps_constants_and_is_linear(new):
    flat = torch.full((15, 2), 3.5)
    torch.testing.assert_close(resample(flat, (3, 5), new), torch.full((new[0] * new[1], 2), 3.5))
    a, b = torch.randn(15, 4), torch.randn(15, 4)
    together = resample(2 * a - 3 * b, (3, 5), new)
    apart = 2 * resample(a, (3, 5), new) - 3 * resample(b, (3, 5), new)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


def test_resample_treats_rows_as_rows():
    rows = torch.arange(4.0).repeat_interleave(3)[:, None]  # grows down the rows of a 4 x 3 grid
    down = resample(rows, (4, 3), (8, 6)).reshape(8, 6)
    torch.testing.assert_close(down, down[:, :1].expand(8, 6))
    assert (down[1:, 0] > down[:-1, 0]).all()
    transposed = resample(rows.reshape(4, 3).T.reshape(12, 1), (3, 4), (6, 8)).reshape(6, 8)
    torch.testing.assert_close(transposed.T, down)


def test_resample_keeps_the_dtype():
    assert resample(torch.randn(6, 4, dtype=torch.bfloat16), (3, 2), (4, 4)).dtype == torch.bfloat16
