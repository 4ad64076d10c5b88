"""Noise that repeats, and patterns that fade in the distance."""

from dataclasses import replace

import numpy as np
import pytest
from support.rendered import GREY

from vitrail.data.render.materials import PATTERNS, TILE, noise_tile, sample

NOISE = noise_tile(1, 1.0)


def test_noise_follows_from_its_seed_and_repeats():
    assert np.array_equal(NOISE, noise_tile(1, 1.0))
    assert not np.array_equal(NOISE, noise_tile(2, 1.0))
    assert NOISE.min() >= 0
    assert NOISE.max() <= 1
    at = np.random.default_rng(0).uniform(-3, 3, (2, 50))
    assert sample(NOISE, at) == pytest.approx(sample(NOISE, at + np.array([[2], [-5]])))
    assert sample(NOISE, np.array([[3 / TILE], [5 / TILE]])) == pytest.approx(NOISE[5, 3])  # x is the column


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_colours_and_fade(pattern):
    material = replace(GREY, pattern=pattern, colour=(0.9, 0.1, 0.5), period=0.3, angle=0.4)
    at = np.random.default_rng(0).uniform(-3, 3, (2, 400))
    near, far = (material.colours(at, np.full(400, width), NOISE) for width in (0.0, 30.0))
    assert near.shape == (3, 400)
    assert near.min() > 0
    assert near.max() <= 1
    assert pattern == "plain" or near[0].std() > 0.05
    assert far[0].std() < max(near[0].std(), 0.06)


def test_checks_change_at_every_period():
    material = replace(GREY, pattern="checks", grain=0.0)
    across = material.colours(np.array([[0.1, 0.6, 1.1], [0.1, 0.1, 0.1]]), np.zeros(3), NOISE)
    assert across[0] == pytest.approx([0.5, 0.2, 0.5])
