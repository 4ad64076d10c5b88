import math

import pytest
import torch

from vitrail.lab.smallest_object import (
    SmallestObjectSettings,
    _ideal,
    _single,
    _trained,
    discs,
    gamma,
    share,
    threshold,
)


def test_the_threshold_is_where_three_quarters_of_the_pairs_are_right() -> None:
    sizes = [1.0, 2.0, 3.0, 4.0, 6.0]
    hits = [1 - 0.5 * 2 ** -((size / 2.5) ** 3) for size in sizes]
    assert math.isclose(threshold(sizes, hits), 2.5, rel_tol=1e-3)


def test_discs_have_their_area_and_lie_inside() -> None:
    torch.manual_seed(0)
    drawn = discs(torch.tensor([4.0, 6.0, 8.0]), 12)
    for size, disc in zip((4, 6, 8), drawn, strict=True):
        assert math.isclose(float(disc.sum()), math.pi * size**2 / 4, rel_tol=0.06)
    assert discs(torch.full((50,), 12.0), 12).std(dim=0).max() == 0  # only one place


def test_the_share_of_pairs_counts_ties_half() -> None:
    assert share(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])) == (1 + 0.5 + 1) / 4


def test_the_mean_follows_the_law_and_the_ideal_observer_is_better() -> None:
    torch.manual_seed(0)
    settings = SmallestObjectSettings(images=2000)
    for side in (12, 24):
        assert math.isclose(_single(settings, "average", side, 1.0), math.sqrt(gamma() * side), rel_tol=0.08)
    assert threshold(settings.sizes, _ideal(settings, 0.7)) < math.sqrt(gamma() * 0.7 * 16)


@pytest.mark.slow
def test_a_trained_vit_is_not_better_than_the_ideal_observer() -> None:
    torch.manual_seed(0)
    settings = SmallestObjectSettings()
    found = threshold(settings.sizes, _trained(settings, 4, 0.7, torch.device("cpu")))
    assert found > 0.95 * threshold(settings.sizes, _ideal(settings, 0.7))
