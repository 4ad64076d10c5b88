"""Fourier positions: values by hand, and the same range on every grid."""

import math

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.layers.fourier import FourierConfig, fourier


def test_by_hand():
    # Two rows: half way round the circle and all the way; one column: all the way. One sine and one cosine of each.
    table = fourier((2, 1), bands=2, theta=10_000.0)
    half, whole = [math.sin(math.pi), math.cos(math.pi)], [math.sin(2 * math.pi), math.cos(2 * math.pi)]
    torch.testing.assert_close(table, torch.tensor([half + whole, whole + whole]), atol=1e-5, rtol=0)


def test_later_bands_turn_more_slowly():
    table = fourier((8, 1), bands=4, theta=100.0)[:, :4]
    slow = torch.arange(1, 9) / 8 * 2 * math.pi / 10  # theta ** (2 / 4) is 10
    torch.testing.assert_close(table[:, 2], slow.sin(), atol=1e-5, rtol=0)
    torch.testing.assert_close(table[:, 3], slow.cos(), atol=1e-5, rtol=0)


def test_a_finer_grid_spans_the_same_positions():
    coarse, fine = fourier((2, 2), bands=8, theta=10_000.0), fourier((4, 4), bands=8, theta=10_000.0)
    torch.testing.assert_close(fine.unflatten(0, (4, 4))[1::2, 1::2].flatten(0, 1), coarse, atol=1e-5, rtol=0)


def test_bands_come_in_pairs():
    with pytest.raises(ConfigError, match="bands is 7"):
        FourierConfig(bands=7)
