"""Levels of one width: those that there are, those that are made, and those of a plain ViT."""

import torch

from vitrail.layers.feature_pyramid import LevelProjection, SimplePyramid


def maps(*widths):
    return [torch.randn(2, width, 24 >> level, 16 >> level) for level, width in enumerate(widths)]


def test_missing_levels_are_made_coarser():
    found = LevelProjection([8, 12, 20], 16, levels=5)(maps(8, 12, 20))
    assert [tuple(level.shape) for level in found] == [
        (2, 16, 24, 16), (2, 16, 12, 8), (2, 16, 6, 4), (2, 16, 3, 2), (2, 16, 2, 1),
    ]  # fmt: skip


def test_the_finest_levels_are_left_out():
    projection = LevelProjection([8, 12, 20], 16, levels=2)
    found = projection(maps(8, 12, 20))
    assert [level.shape[2] for level in found] == [12, 6]
    assert len(projection.maps) == 2


def test_simple_pyramid_doubles_and_halves():
    found = SimplePyramid(12, 16)(torch.randn(2, 12, 7, 5))
    assert [tuple(level.shape) for level in found] == [(2, 16, 14, 10), (2, 16, 7, 5), (2, 16, 4, 3)]
