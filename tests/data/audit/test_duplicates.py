"""Duplicates: equal pixels are found exactly, copies are found, and different pictures are not."""

import io

import numpy as np
import torch
from PIL import Image

from vitrail.data.audit.duplicates import exact_groups, fingerprint, near_pairs
from vitrail.data.decode import decode


def picture(seed: int, side=64) -> np.ndarray:
    """Soft random shapes, as a photograph has."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def chw(image: np.ndarray) -> torch.Tensor:
    return torch.tensor(image).permute(2, 0, 1)


def test_equal_pixels():
    prints = [fingerprint(chw(picture(seed))) for seed in (0, 1, 0, 2, 1, 0)]
    assert exact_groups([*prints, None]) == [[0, 2, 5], [1, 4]]
    flat, tall = torch.zeros(1, 2, 8, dtype=torch.uint8), torch.zeros(1, 8, 2, dtype=torch.uint8)
    assert exact_groups([fingerprint(flat), fingerprint(tall)]) == []


def test_copies_are_found():
    original = picture(3)
    buffer = io.BytesIO()
    Image.fromarray(original).save(buffer, "JPEG", quality=60)
    smaller = np.asarray(Image.fromarray(original).resize((48, 40), Image.Resampling.BICUBIC))
    prints = [fingerprint(chw(original)), fingerprint(decode(buffer.getvalue())), fingerprint(chw(smaller))]
    assert near_pairs(prints) == [(0, 1), (0, 2), (1, 2)]


def test_different_pictures_are_not():
    prints = [fingerprint(chw(picture(seed, side=32))) for seed in range(200)]
    assert near_pairs(prints) == []


def test_equal_and_flat_pictures_are_no_near_pairs():
    flat = [fingerprint(torch.full((3, 16, 16), shade, dtype=torch.uint8)) for shade in (100, 101)]
    assert near_pairs(flat) == []
    assert near_pairs([fingerprint(chw(picture(1)))] * 2) == []


def test_large_pictures_are_thinned_alike():
    small = fingerprint(chw(picture(5, side=64)))
    large = fingerprint(chw(picture(5, side=600)))
    assert near_pairs([small, large]) == [(0, 1)]
