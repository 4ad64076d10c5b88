import math

import torch

from vitrail.lab.position_spectra import _rope_error, _sincos_error, order, readable, spectrum


def waves(side: int, step: int) -> torch.Tensor:
    """A cosine and a sine along the rows of a grid: N 2."""
    angles = 2 * math.pi * step * torch.arange(side).double() / side
    return torch.stack([angles.cos(), angles.sin()], dim=1).repeat_interleave(side, dim=0)


def test_a_wave_has_its_own_frequency() -> None:
    assert [round(share, 9) for share in spectrum(waves(8, 3), 8)] == [0.0, 0.0, 1.0, 0.0]


def test_a_wave_reads_itself_along_its_axis_and_nothing_else() -> None:
    found = readable(waves(8, 2), 8)
    # Two channels with 10 % of noise each: N s^2 = 0.1^2 |P|^2 / 2 = 0.01 * 64 / 2, and |t|^2 = 32.
    assert math.isclose(found[1], 32 / (32 + 0.32) / 2, rel_tol=1e-9)
    assert max(found[0], found[2], found[3]) < 1e-9


def test_codes_that_are_coordinates_are_in_order() -> None:
    side = 6
    at = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    grams = torch.exp(-torch.cdist(at, at))  # a positive definite function of the distance
    values, vectors = torch.linalg.eigh(grams)
    assert order(vectors * values.clamp(min=0).sqrt(), side) > 0.99  # equal distances differ by rounding


def test_products_are_relative() -> None:
    torch.manual_seed(0)
    assert _sincos_error((4, 5), 32) < 1e-6
    assert _rope_error((4, 5), 16) < 1e-5
