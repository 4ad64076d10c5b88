"""Sliding windows along one side of the grid against their definition; sides of windows must be odd."""

import pytest

from vitrail.errors import ConfigError
from vitrail.layers.attention import DilatedConfig, LocalConfig, NeighbourhoodConfig
from vitrail.layers.attention.sliding import TILE, sliding


@pytest.mark.parametrize("config", [LocalConfig, NeighbourhoodConfig, DilatedConfig])
def test_a_window_has_a_middle(config):
    assert config(size=(3, 1)).size == (3, 1)
    with pytest.raises(ConfigError, match=r"7 x 8.*odd"):
        config(size=(7, 8))


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 23])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("inward", [True, False])
def test_sliding_windows_are_those_of_the_definition(length, dilation, inward):
    size = 5
    pairs = sliding(length, size=size, dilation=dilation, inward=inward).pairs()
    for place in range(length):
        same = list(range(place % dilation, length, dilation))
        middle = same.index(place)
        first = middle - size // 2
        if inward:
            first = max(0, min(first, len(same) - size))
        seen = [same[index] for index in range(first, first + size) if 0 <= index < len(same)]
        assert pairs[place].nonzero().flatten().tolist() == seen


def test_a_long_side_is_cut_into_tiles():
    axis = sliding(3 * TILE + 1, size=7)
    assert axis.queries.shape == (4, TILE)
    assert axis.keys.shape == (4, TILE + 6)
    assert axis.queries.flatten()[axis.home].tolist() == list(range(3 * TILE + 1))
