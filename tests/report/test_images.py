"""Images of a report: every pixel of small ones, photos made smaller, heat where the map is high."""

import base64
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.report import Line
from vitrail.report.images import data_uri, heat_gallery, overlay


def decoded(uri: str) -> Image.Image:
    """The picture in a data URI."""
    return Image.open(BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize("channels", [1, 3])
def test_tiny_pictures_keep_every_pixel(channels):
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    picture = np.asarray(decoded(data_uri(image)))
    assert np.array_equal(picture.reshape(5, 7, channels), image.permute(1, 2, 0).numpy())


def test_photos_are_shrunk_to_scale():
    uri = data_uri(torch.zeros(3, 300, 600, dtype=torch.uint8))
    assert uri.startswith("data:image/jpeg")
    assert decoded(uri).size == (192, 96)


def test_heat_glows_where_the_map_is_high():
    heat = torch.zeros(4, 4)
    heat[0, 3] = 0.2
    shown = overlay(torch.full((3, 32, 32), 100, dtype=torch.uint8), heat).astype(float)
    assert shown.shape == (3, 192, 192)
    assert shown[:, 24, 168].mean() > 2 * shown[:, 168, 24].mean()
    assert overlay(torch.zeros(1, 28, 28, dtype=torch.uint8), torch.full((7, 7), 0.02)).shape == (3, 196, 196)


def test_a_heat_gallery_has_pairs_of_images():
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    gallery = heat_gallery("Attention", "text", list(images), list(torch.rand(2, 2, 2)), [[Line("cat", "good")], []])
    assert [len(shot.images) for shot in gallery.shots] == [2, 2]
    assert gallery.shots[0].images[0] == data_uri(images[0])
    assert gallery.shots[0].lines == (Line("cat", "good"),)
