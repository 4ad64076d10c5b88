import math

import torch
from torch import nn

from vitrail.lab.receptive_field import ReceptiveFieldSettings, _plain, _rollout, energy, fields, radius
from vitrail.lab.subjects import natural_noise, random_vit


def test_an_even_square_has_the_radius_of_its_formula() -> None:
    side = 9  # the variance of 0 ... n-1 is (n^2 - 1) / 12 for each axis
    assert math.isclose(radius(torch.ones(side, side).double(), (4, 4)), math.sqrt(2 * (side**2 - 1) / 12))


def test_the_energy_of_a_linear_map_is_its_squared_kernel() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(1, 1, 3, padding=1, bias=False)
    images = torch.randn(2, 1, 5, 5, requires_grad=True)
    found = energy(layer(images)[:, :, 2, 2], images)
    assert torch.allclose(found[1:4, 1:4], layer.weight[0, 0].double().square())
    assert found.count_nonzero() == 9


def test_a_stack_of_convolutions_reaches_what_it_can() -> None:
    torch.manual_seed(0)
    found = _plain(ReceptiveFieldSettings(width=8, depths=(1, 3), images=2), torch.device("cpu"))
    assert found["extent"] == [3.0, 7.0]


def test_a_vit_reaches_all_pixels_and_without_attention_its_own_patch() -> None:
    torch.manual_seed(0)
    model = random_vit(dim=16, depth=1, num_heads=2, image_size=16, patch=4)
    images = natural_noise(2, 16)
    assert fields(model, images)["reach"] == [1.0]
    nn.init.zeros_(model.blocks[0].get_submodule("attention.projection").weight)  # type: ignore[arg-type]
    assert fields(model, images)["reach"] == [1 / 16]


def test_rollout_of_equal_tokens_is_half_even_and_half_itself() -> None:
    model = random_vit(dim=16, depth=1, num_heads=2, image_size=16, patch=4)
    nn.init.zeros_(model.blocks[0].get_submodule("attention.qkv").weight)  # type: ignore[arg-type]
    assert math.isclose(_rollout(model, natural_noise(2, 16))[0], math.sqrt(0.5), rel_tol=1e-6)
