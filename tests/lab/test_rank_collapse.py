import math

import torch

from vitrail.lab.rank_collapse import _products, _spectrum, distinct


def test_equal_tokens_are_not_distinct_and_centred_ones_are() -> None:
    assert distinct(torch.ones(2, 5, 3)) < 1e-12
    centred = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])[None]
    assert math.isclose(distinct(centred), 1.0)
    shifted = centred + torch.tensor([3.0, 3.0])  # norm^2: 4 of differences, 36 of the mean
    assert math.isclose(distinct(shifted), math.sqrt(4 / 40))


def test_products_of_a_mixture_with_the_mean_shrink_by_its_share() -> None:
    count, share = 8, 0.5
    matrix = share * torch.eye(count) + (1 - share) / count
    found = _products([matrix[None].double()] * 4)["products"]["plain"]
    apart = share**4 * math.sqrt(count - 1)  # the eigenvalue of everything but the mean, to the power of the layers
    assert math.isclose(found[-1], apart / math.sqrt(apart**2 + 1), rel_tol=1e-9)


def test_the_spectrum_of_a_rotation_is_complex() -> None:
    found = _spectrum([torch.eye(3).roll(1, dims=0)[None].double()])
    assert found["eigenvalue_error"] < 1e-12
    assert math.isclose(found["complex"], 2 / 3)
    assert math.isclose(found["second"], 1.0)
