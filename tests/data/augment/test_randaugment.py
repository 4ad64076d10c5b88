"""RandAugment's operations against torchvision's on uint8 images, and its draws."""

import math

import pytest
import support.peers  # noqa: F401  makes torchvision loadable, so comes first
import torch
from torchvision.transforms import v2

from vitrail.data.augment.randaugment import (
    ALWAYS_FULL,
    GEOMETRIC,
    LIMITS,
    ONE_WAY,
    draw_amounts,
    move,
    randaugment,
    recolour,
)

peer = v2.functional
BLACK = torch.zeros(3, 1, 1)
PIXEL_OPERATIONS = sorted(set(LIMITS) - set(GEOMETRIC))


def pictures(count: int, channels: int = 3, size=(24, 20)) -> torch.Tensor:
    """Soft uint8 images that do not fill the range."""
    soft = torch.nn.functional.interpolate(torch.rand(count, channels, 5, 5), size=size, mode="bicubic", antialias=True)
    return (soft * 170 + 30).clamp(0, 255).byte()


def amounts_of(name: str, strength: float, count: int) -> dict[str, torch.Tensor]:
    amounts = {other: torch.zeros(count, 1) for other in LIMITS}
    amounts[name] = torch.full((count, 1), LIMITS[name] * strength)
    return amounts


def theirs(image: torch.Tensor, name: str, strength: float) -> torch.Tensor:
    """What torchvision's RandAugment does for an operation of this amount."""
    amount = LIMITS[name] * strength
    height, width = image.shape[1:]
    bilinear = v2.InterpolationMode.BILINEAR
    affine = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], "interpolation": bilinear}
    slant = math.degrees(math.atan(amount))
    calls = {
        "identity": lambda: image,
        "shear_x": lambda: peer.affine(image, **affine | {"shear": [slant, 0.0], "center": [0, 0]}),
        "shear_y": lambda: peer.affine(image, **affine | {"shear": [0.0, slant], "center": [0, 0]}),
        "translate_x": lambda: peer.affine(image, **affine | {"translate": [int(amount * width), 0]}),
        "translate_y": lambda: peer.affine(image, **affine | {"translate": [0, int(amount * height)]}),
        "rotate": lambda: peer.rotate(image, math.degrees(amount), interpolation=bilinear),
        "brightness": lambda: peer.adjust_brightness(image, 1 + amount),
        "colour": lambda: peer.adjust_saturation(image, 1 + amount),
        "contrast": lambda: peer.adjust_contrast(image, 1 + amount),
        "sharpness": lambda: peer.adjust_sharpness(image, 1 + amount),
        "posterize": lambda: peer.posterize(image, bits=8 - round(amount)),
        "solarize": lambda: peer.solarize(image, threshold=255 * (1 - amount)),
        "autocontrast": lambda: peer.autocontrast(image),
        "equalize": lambda: peer.equalize(image),
    }
    return calls[name]()


@pytest.mark.parametrize("name", GEOMETRIC)
@pytest.mark.parametrize("strength", [-0.9, 0.5, 1.0])
def test_geometric_operations_are_torchvision_s(name, strength):
    images = pictures(3)
    found, _ = move(images / 255, amounts_of(name, strength, 3), BLACK)
    expected = torch.stack([theirs(image.float(), name, strength) for image in images])
    torch.testing.assert_close(found * 255, expected, rtol=0, atol=0.02)
    assert not torch.equal(found, images / 255)


@pytest.mark.parametrize("name", PIXEL_OPERATIONS)
@pytest.mark.parametrize("strength", [-0.9, 0.3, 1.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixel_operations_are_torchvision_s(name, strength, channels):
    strength = abs(strength) if name in ONE_WAY else strength
    images = pictures(3, channels, size=(64, 60))  # so many pixels that equalize takes steps of several
    amounts = amounts_of(name, strength, 3)
    found = recolour(images / 255, {other: amount[:, :, None, None] for other, amount in amounts.items()}) * 255
    expected = torch.stack([theirs(image, name, strength) for image in images]).float()
    # torchvision cuts fractions off, here and in the grey that contrast and colour start from.
    exact = name in ("identity", "posterize", "solarize", "equalize")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if exact else 2.0)
    if not (name == "identity" or (name == "colour" and channels == 1)):
        assert not torch.equal(expected, images.float())


def test_flat_images_survive_statistics():
    images = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8) / 255
    for name in ("autocontrast", "equalize"):
        amounts = amounts_of(name, 1.0, 2)
        found = recolour(images, {other: amount[:, :, None, None] for other, amount in amounts.items()})
        torch.testing.assert_close(found, images)


def test_equalize_leaves_the_highest_level_out_of_its_steps():
    images = pictures(3, size=(64, 60)).clamp(max=120)  # a third of the pixels or so
    amounts = amounts_of("equalize", 1.0, 3)
    found = recolour(images / 255, {other: amount[:, :, None, None] for other, amount in amounts.items()}) * 255
    torch.testing.assert_close(found, peer.equalize(images).float(), rtol=0, atol=1e-4)


def test_two_maps_are_one_after_the_other():
    images = pictures(2) / 255
    both = {name: torch.zeros(2, 2) for name in LIMITS}
    both["rotate"][:, 0], both["translate_x"][:, 1] = 0.3, 0.2
    once, _ = move(images, both, BLACK)
    turned, _ = move(images, {name: amount[:, :1] for name, amount in both.items()}, BLACK)
    twice, _ = move(turned, {name: amount[:, 1:] for name, amount in both.items()}, BLACK)
    # A shift by whole pixels after the turn interpolates nothing anew.
    torch.testing.assert_close(once[..., 4:], twice[..., 4:], rtol=0, atol=1e-5)


def test_each_round_draws_one_operation_evenly():
    amounts = draw_amounts(torch.rand(28_000, 2, 2), 5.0)
    drawn = torch.stack([amount != 0 for name, amount in amounts.items() if name != "identity"])
    assert drawn.sum(0).max() == 1
    for name, amount in amounts.items():
        if name == "identity":
            continue
        assert abs((amount != 0).float().mean() - 1 / 14) < 0.006, name
        values = set(amount.unique().tolist()) - {0.0}
        limit = LIMITS[name] if name in ALWAYS_FULL else LIMITS[name] / 2
        signs = (1,) if name in ONE_WAY else (-1, 1)
        assert values == {sign * torch.tensor(limit).item() for sign in signs}, name


def test_no_strength_leaves_levels_alone():
    images = pictures(40)
    draws = torch.rand(40, 2, 2)
    draws[..., 0] *= 12 / 14  # all but autocontrast and equalize
    found, maps = randaugment(images / 255, draws, 0.0, BLACK)
    torch.testing.assert_close(found, images / 255, rtol=0, atol=1e-6)
    torch.testing.assert_close(maps, torch.eye(3)[:2].expand(40, 2, 3), rtol=0, atol=1e-6)


def test_values_stay_in_range_and_outside_is_filled():
    fill = torch.tensor([0.2, 0.4, 0.6])[:, None, None]
    found, _ = randaugment(pictures(200) / 255, torch.rand(200, 3, 2), 10.0, fill)
    assert found.min() >= 0
    assert found.max() <= 1
    shifted, _ = move(pictures(1) / 255, amounts_of("translate_y", 1.0, 1), fill)
    torch.testing.assert_close(shifted[0, :, :10], fill.expand(3, 10, 20), rtol=0, atol=1e-5)
