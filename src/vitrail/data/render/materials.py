"""Procedural textures: noise, stripes, checks, tiles and speckles in two colours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from vitrail.data.render.camera import Array, Vector

Pattern = Literal["plain", "noise", "stripes", "checks", "tiles", "speckles"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
TILE = 128  # pixels of a noise tile
_JOINT = 0.06  # of a tile: the width of its joint


@dataclass(frozen=True, kw_only=True)
class Material:
    """A surface: colours are linear RGB from 0 to 1, `period` is the size of its pattern in metres."""

    colour: Vector
    second: Vector
    pattern: Pattern = "plain"
    period: float = 0.5
    angle: float = 0.0  # of the pattern, radians
    shift: float = 0.0  # of the noise, in tiles
    grain: float = 0.1  # share of brightness that noise changes
    gloss: float = 0.0  # strength of highlights

    def colours(self, surface: Array, width: Array, noise: Array) -> Array:
        """Colours 3 N at coordinates 2 N; `width` N is that of a pixel there, below which patterns fade."""
        turn = np.array([[np.cos(self.angle), -np.sin(self.angle)], [np.sin(self.angle), np.cos(self.angle)]])
        at = turn @ surface / self.period
        slow = sample(noise, at * 0.25 + self.shift)
        blur = 1 / (1 + (2 * width / self.period) ** 2)
        make, mean = _SHARES[self.pattern]
        share = mean + (make(at, slow) - mean) * blur
        fine = sample(noise, at * 1.7 - self.shift) - 0.5
        bright = 1 + self.grain * (2 * fine * blur + (slow - 0.5))
        first, second = np.array(self.colour)[:, None], np.array(self.second)[:, None]
        return np.asarray(np.clip((first + (second - first) * share) * bright, 0.005, 1))


def noise_tile(seed: int, slope: float) -> Array:
    """Noise from 0 to 1 that repeats, TILE TILE; its amplitude falls with the frequency to the power `slope`."""
    random = np.random.default_rng(seed)
    spectrum = np.fft.rfft2(random.standard_normal((TILE, TILE)))
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None])
    frequency[0, 0] = np.inf
    values = np.fft.irfft2(spectrum * (frequency * TILE) ** -slope, s=(TILE, TILE))
    return np.asarray(np.clip(0.5 + values / (4 * values.std()), 0, 1))


def sample(noise: Array, at: Array) -> Array:
    """Bilinear values N of a tile that repeats every 1: 2 N -> N."""
    place = at * TILE
    low = np.floor(place)
    (u, v), (column, row) = place - low, low.astype(np.int64) & (TILE - 1)
    right, below = (column + 1) & (TILE - 1), (row + 1) & (TILE - 1)
    top = noise[row, column] * (1 - u) + noise[row, right] * u
    bottom = noise[below, column] * (1 - u) + noise[below, right] * u
    return np.asarray(top * (1 - v) + bottom * v)


def _plain(at: Array, slow: Array) -> Array:
    return np.zeros_like(slow)


def _noise(at: Array, slow: Array) -> Array:
    return np.clip((slow - 0.5) * 2.5 + 0.5, 0, 1)


def _stripes(at: Array, slow: Array) -> Array:
    return np.asarray(np.clip(4 * np.sin(2 * np.pi * (at[0] + 0.3 * (slow - 0.5))) + 0.5, 0, 1))


def _checks(at: Array, slow: Array) -> Array:
    return np.asarray((np.floor(at).sum(0) % 2).astype(np.float64))


def _tiles(at: Array, slow: Array) -> Array:
    inner = np.mod(np.stack([at[0] + 0.5 * (np.floor(at[1]) % 2), at[1]]), 1)
    return np.asarray((np.minimum(inner, 1 - inner).min(0) < _JOINT).astype(np.float64))


def _speckles(at: Array, slow: Array) -> Array:
    return np.asarray((slow > 0.62).astype(np.float64))


# The share of the second colour at coordinates 2 N and with slow noise N, and its mean.
_SHARES: Mapping[Pattern, tuple[Callable[[Array, Array], Array], float]] = {
    "plain": (_plain, 0.0),
    "noise": (_noise, 0.5),
    "stripes": (_stripes, 0.5),
    "checks": (_checks, 0.5),
    "tiles": (_tiles, 1 - (1 - 2 * _JOINT) ** 2),
    "speckles": (_speckles, 0.3),
}
