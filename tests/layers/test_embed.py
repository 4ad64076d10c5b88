"""Embeddings: the computed grid, and a norm over channels."""

import pytest
import torch
from torch import nn

from vitrail.layers.embed import ConvEmbed, Window, halving_stem
from vitrail.layers.norm import LayerNormConfig


@pytest.mark.parametrize("window", [Window(4, 4), Window(2, 2), Window(7, 4, 3), Window(3, 2, 1), Window(7, 4, 2)])
@pytest.mark.parametrize("size", [(32, 16), (28, 40)])
def test_gives_the_grid_it_promised(window, size):
    layer = ConvEmbed(3, 8, window, norm=LayerNormConfig())
    maps = layer(torch.randn(2, 3, *size))
    assert maps.shape == (2, 8, *window.grid(size))


def test_overlapping_windows_lose_no_pixel():
    assert Window(7, 4, 3).grid((9, 8)) == (3, 2)
    assert Window(3, 2, 1).grid((3, 2)) == (2, 1)


def test_channels_are_normalised_at_each_place():
    maps = ConvEmbed(3, 64, Window(3, 2, 1), norm=LayerNormConfig())(torch.randn(2, 3, 9, 7))
    torch.testing.assert_close(maps.mean(dim=1), torch.zeros(2, 5, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(maps.var(dim=1, correction=0), torch.ones(2, 5, 4), atol=1e-3, rtol=0)


def test_a_halving_stem_doubles_the_width_and_ends_without_an_activation():
    stem = halving_stem(3, 32, 3, activation=nn.Hardswish)
    assert [step.conv.out_channels for step in stem] == [8, 16, 32]
    assert [type(step.activation) for step in stem] == [nn.Hardswish, nn.Hardswish, nn.Identity]
    assert stem(torch.randn(2, 3, 33, 16)).shape == (2, 32, 5, 2)
