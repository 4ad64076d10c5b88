"""Saliency maps and the part of an image that a model gets, at display size."""

import torch

from vitrail.data.preprocess import Preprocess
from vitrail.serve.overlay import MAX_SIDE, MIN_SIDE, blend, contrast, display_crop, display_whole, overlay


def ramp(height: int, width: int) -> torch.Tensor:
    """Columns from 0 to 255, as 1 3 H W."""
    return torch.linspace(0, 255, width).round().to(torch.uint8).expand(1, 3, height, width).contiguous()


def test_the_crop_is_what_the_model_gets_at_the_resolution_of_the_image() -> None:
    image, preprocess = ramp(300, 600), Preprocess(image_size=(30, 30))
    shown = display_crop(image, preprocess)
    assert torch.equal(shown, image[0, :, :, 150:450])
    fitted = preprocess.fit(image)[0][0]
    assert (fitted[:, :, 0].float() - shown[:, :, :10].float().mean(dim=2)[:, ::10]).abs().max() < 8


def test_small_images_are_enlarged_and_large_ones_reduced() -> None:
    assert display_crop(ramp(20, 20), Preprocess(image_size=(8, 8))).shape == (3, MIN_SIDE, MIN_SIDE)
    assert display_crop(ramp(2000, 3000), Preprocess(image_size=(8, 8))).shape == (3, MAX_SIDE, MAX_SIDE)
    wide = Preprocess(image_size=(192, 672), channels=1)
    assert display_crop(ramp(10, 10), wide).shape == (1, MIN_SIDE, round(672 * MIN_SIDE / 192))


def test_a_smaller_share_is_shown_for_a_smaller_crop() -> None:
    image = ramp(1000, 1000)
    shown = display_crop(image, Preprocess(image_size=(224, 224), crop=0.5, resize="crop"))
    assert shown.shape == (3, 500, 500)
    assert abs(int(shown[0, 0, 0]) - int(image[0, 0, 0, 250])) <= 1


def test_overlays_go_from_clear_to_opaque() -> None:
    layer = overlay(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), (100, 200))
    assert layer.shape == (4, 100, 200)
    assert (int(layer[3, 50, 0]), int(layer[3, 50, -1])) == (0, 255)
    black = torch.zeros(1, 100, 200, dtype=torch.uint8)
    assert blend(black, layer)[:, 50, -1].tolist() == [180, 187, 25]
    assert blend(black, layer)[:, 50, 0].tolist() == [0, 0, 0]


def test_even_maps_have_no_contrast() -> None:
    assert contrast(torch.ones(3, 3)) == 0
    assert contrast(torch.eye(3)) == 1
    assert contrast(torch.zeros(3, 3)) == 0


def test_a_whole_picture_keeps_its_shape() -> None:
    assert display_whole(ramp(300, 400)).shape == (3, 300, 400)
    assert display_whole(ramp(60, 90)).shape == (3, MIN_SIDE, round(90 * MIN_SIDE / 60))
    assert display_whole(ramp(1000, 2000)).shape == (3, MAX_SIDE // 2, MAX_SIDE)
