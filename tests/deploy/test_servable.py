import numpy as np
import pytest
import torch
from shipped import opened, photos

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.cache import fit
from vitrail.deploy.card import Card
from vitrail.deploy.engine import servable
from vitrail.deploy.servable import Pixels

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def prepared(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The window that `fit` cuts, resized in floating point, normalised."""
    (height, width), ratio = images.shape[2:], size[0] / size[1]
    rows, columns = min(height, max(1, round(width * ratio))), min(width, max(1, round(height / ratio)))
    top, left = (height - rows) // 2, (width - columns) // 2
    window = images[:, :, top : top + rows, left : left + columns].float()
    if (rows, columns) != size:
        window = torch.nn.functional.interpolate(window, size=size, mode="bicubic", antialias=True)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (window.clamp(0, 255) / 255 - mean) / std


@pytest.mark.parametrize("size", [(24, 16), (40, 40), (17, 61)])
@pytest.mark.parametrize("came", [(24, 16), (50, 70), (70, 50), (9, 200), (5, 5)])
def test_pixels_are_cut_resized_and_normalised(size, came):
    images = torch.nn.functional.interpolate(photos(1)[0][None], size=came, mode="bilinear")
    found = Pixels(image_size=size, mean=MEAN, std=STD)(images.permute(0, 2, 3, 1))
    torch.testing.assert_close(found, prepared(images, size), atol=2e-4, rtol=1e-4)


def test_pixels_are_those_of_training_within_its_rounding():
    for picture in photos(8):
        images, pixels = picture[None], Pixels(image_size=(24, 16), mean=MEAN, std=STD)
        config = AugmentConfig(mean=MEAN, std=STD)
        trained = Prepare(config, image_size=(24, 16), channels=3)(fit(images, size=(24, 16), channels=3))
        levels = (pixels(images.permute(0, 2, 3, 1)) - trained).abs() * torch.tensor(STD)[:, None, None] * 255
        assert levels.max() < 1.05
        fitted = fit(images, size=(24, 16), channels=3).permute(0, 2, 3, 1)
        torch.testing.assert_close(pixels(fitted), trained, atol=1e-5, rtol=1e-5)


def test_grey_alpha_and_colour_come_out_alike():
    pixels = Pixels(image_size=(8, 8), mean=MEAN, std=STD)
    grey = photos(1, channels=1)[0][None].permute(0, 2, 3, 1)  # 1 H W 1
    solid = torch.full_like(grey, 255)
    colour = grey.expand(-1, -1, -1, 3)
    for same in (grey, torch.cat([grey, solid], 3), torch.cat([colour, solid], 3)):
        torch.testing.assert_close(pixels(same), pixels(colour))
    white = pixels(torch.full_like(colour, 255))
    torch.testing.assert_close(pixels(torch.cat([colour, 0 * solid], 3)), white)  # transparent: the paper shows


def test_a_grey_model_sees_the_lightness_of_colours():
    pixels = Pixels(image_size=(8, 8), mean=(0.5,), std=(0.25,))
    red = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    red[..., 0] = 200
    assert pixels(red).shape == (1, 1, 8, 8)
    assert pixels(red)[0, 0, 0, 0].item() == pytest.approx((0.299 * 200 / 255 - 0.5) / 0.25, abs=1e-4)


def test_probabilities_go_with_the_kind_of_labels():
    for several in (False, True):
        model = opened(multi_label=several)
        logits, probabilities = servable(model, Card.of(model))(torch.from_numpy(np.zeros((2, 9, 9, 3), np.uint8)))
        wanted = logits.sigmoid() if several else logits.softmax(1)
        torch.testing.assert_close(probabilities, wanted)
