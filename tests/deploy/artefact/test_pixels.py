"""The preprocessing of a graph gives the pixels of `Preprocess`, within one grey level."""

import pytest
import torch
from PIL import Image
from support.shipped import photos
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.pixels import Pixels, frame
from vitrail.errors import Unsupported
from vitrail.packaged import samples
from vitrail.runs.predict import pixels as read

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
WAYS = [
    {"resize": "window"},
    {"resize": "window", "crop": 0.9},
    {"resize": "window", "interpolation": "bilinear", "channel_order": "bgr"},
    {"resize": "crop", "crop": 0.875},
    {"resize": "crop", "crop": 0.95, "interpolation": "bilinear"},
    {"resize": "crop", "crop": 0.9, "like": "hf"},
    {"resize": "crop", "crop": 1.0},
    {"resize": "squash", "crop": 0.8},
    {"resize": "squash", "interpolation": "bilinear"},
]


def preprocess(size: tuple[int, int], **way: object) -> Preprocess:
    return Preprocess(image_size=size, mean=MEAN, std=STD, **way)


def levels(found: Tensor, wanted: Tensor) -> int:
    """The largest difference in whole grey levels."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    first, second = ((255 * (image * std + mean)).round() for image in (found, wanted))
    return int((first - second).abs().max())


def pictures() -> list[Tensor]:
    """Smooth ones, a photograph, and hard edges, at which bicubic filters overshoot."""
    edges = torch.zeros(3, 61, 47, dtype=torch.uint8)
    edges[:, ::7] = 255
    edges[0, :, ::5] = 255
    return [*photos(3), read(Image.open(samples()["cat"]).convert("RGB")), edges]


@pytest.mark.parametrize("size", [(24, 24), (24, 16), (40, 56)])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_pixels_are_those_of_preprocess_within_a_grey_level(way, size):
    made = preprocess(size, **way)
    graph = Pixels(made)
    for picture in pictures():
        image = picture[None]
        assert levels(graph(image.permute(0, 2, 3, 1)), made(image)) <= 1


@pytest.mark.parametrize("came", [(24, 16), (70, 50), (50, 70), (9, 200), (200, 9), (5, 5), (1, 1), (333, 257)])
@pytest.mark.parametrize("way", WAYS[:5], ids=lambda way: "-".join(map(str, way.values())))
def test_images_of_every_shape_are_cut_at_the_same_pixels(way, came):
    """A ramp has another value in each column and row, and a filter does not change its slope."""
    down, across = (torch.linspace(0, 255, side) for side in came)
    ramp = torch.stack([down[:, None].expand(came), across.expand(came), across.expand(came)]).to(torch.uint8)[None]
    made = preprocess((24, 16), **way)
    assert levels(Pixels(made)(ramp.permute(0, 2, 3, 1)), made(ramp)) <= 1


def test_grey_alpha_and_colour_come_out_alike():
    pixels = Pixels(preprocess((8, 8)))
    grey = photos(1, channels=1)[0][None].permute(0, 2, 3, 1)  # 1 H W 1
    solid = torch.full_like(grey, 255)
    colour = grey.expand(-1, -1, -1, 3)
    for same in (grey, torch.cat([grey, solid], 3), torch.cat([colour, solid], 3)):
        torch.testing.assert_close(pixels(same), pixels(colour))
    white = pixels(torch.full_like(colour, 255))
    torch.testing.assert_close(pixels(torch.cat([colour, 0 * solid], 3)), white)  # transparent over white


def test_a_grey_model_sees_the_lightness_of_colours():
    pixels = Pixels(Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.25,)))
    red = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    red[..., 0] = 200
    assert pixels(red).shape == (1, 1, 8, 8)
    assert pixels(red)[0, 0, 0, 0].item() == pytest.approx((0.299 * 200 / 255 - 0.5) / 0.25, abs=1e-4)


@pytest.mark.parametrize(
    ("way", "word"),
    [
        ({"resize": "pad"}, "pad"),
        ({"interpolation": "nearest"}, "nearest"),
        ({"interpolation": "lanczos"}, "lanczos"),
        ({"resize": "crop", "crop": 1.1}, "margins"),
    ],
)
def test_what_a_graph_cannot_do_is_refused_with_the_reason(way, word):
    with pytest.raises(Unsupported, match=word):
        Pixels(preprocess((24, 16), **way))


@pytest.mark.parametrize("size", [(24, 24), (24, 16), (17, 61), (224, 224), (384, 512)])
@pytest.mark.parametrize("way", [*WAYS, {"crop": 0.7}, {"crop": 0.965}, {"resize": "crop", "crop": 0.965}], ids=str)
def test_fitted_images_are_cut_out_of_their_frame_unchanged(way, size):
    made = preprocess(size, **way)
    height, width, top, left = frame(made)
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
    canvas = torch.full((1, 3, height, width), 255, dtype=torch.uint8)
    canvas[:, :, top : top + size[0], left : left + size[1]] = image
    torch.testing.assert_close(made.fit(canvas)[0], image, atol=0, rtol=0)
    if max(size) < 100:
        found = Pixels(made)(canvas.permute(0, 2, 3, 1))
        torch.testing.assert_close(found, made.normalise(image), atol=1e-4, rtol=1e-4)
