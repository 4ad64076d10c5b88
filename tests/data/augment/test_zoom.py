"""Scale jitter and tiles: how large an image is shown, and where."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.augment.augmentation import Augment, AugmentConfig
from vitrail.data.augment.resample import place, rotations, whole_boxes
from vitrail.data.augment.zoom import pixel_steps, tile_boxes, zoom_boxes, zooms
from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError

few = settings(max_examples=40, deadline=None, derandomize=True)
BLACK = torch.zeros(3, 1, 1)


@pytest.mark.parametrize("resize", ["pad", "squash", "window"])
def test_at_zoom_1_images_are_as_large_as_in_evaluation(resize):
    """A wide image, stored in a square: the step leads to the same original pixels as the map of evaluation."""
    original, stored, size = (60, 120), (64, 64), (48, 48)
    aspect = torch.tensor([(original[1] / original[0]) / (stored[1] / stored[0])])
    across, down = pixel_steps(stored, size, aspect, resize)
    maps = Preprocess(image_size=size, resize=resize).maps(torch.tensor([original]))[0]
    assert float(across) * original[1] / stored[1] == pytest.approx(float(maps[0, 0]))
    assert float(down) * original[0] / stored[0] == pytest.approx(float(maps[1, 1]))


def test_zooms_are_even_in_their_logarithm():
    found = zooms(torch.tensor([0.0, 0.5, 1.0]), (0.25, 4.0))
    torch.testing.assert_close(found, torch.tensor([0.25, 1.0, 4.0]))


@few
@given(draws=st.tuples(*[st.floats(0, 1, width=32)] * 3), low=st.floats(0.2, 1.0), more=st.floats(1.0, 4.0))
def test_a_box_holds_the_image_or_is_in_it(draws, low, more):
    stored, size = (40, 60), (32, 32)
    steps = pixel_steps(stored, size, torch.ones(1), "pad")
    boxes = zoom_boxes(torch.tensor([draws]), stored, steps, size, (low, low * more))
    for first, length, side in ((boxes.left, boxes.width, stored[1]), (boxes.top, boxes.height, stored[0])):
        inside = float(first) >= -1e-3 and float(first + length) <= side + 1e-3
        around = float(first) <= 1e-3 and float(first + length) >= side - 1e-3
        assert inside or around
    assert float(boxes.width / boxes.height) == pytest.approx(1.0)


@few
@given(draws=st.tuples(*[st.floats(0, 1, width=32)] * 3), flip=st.booleans())
def test_a_tile_shows_a_part_of_the_image_at_its_corners(draws, flip):
    stored, size, corners = (64, 64), (48, 48), torch.tensor([[20.0, 0.0, 48.0, 30.0]])
    steps, mirrored = pixel_steps(stored, size, torch.ones(1), "pad"), torch.tensor([flip])
    boxes = tile_boxes(torch.tensor([draws]), stored, steps, size, corners, mirrored, (1.0, 2.0))
    maps = boxes.maps(size, flip=mirrored)[0]
    points = torch.tensor([[20.0, 0.0, 1.0], [48.0, 30.0, 1.0]]) @ maps.T
    assert (points >= -1e-2).all()
    assert (points <= 64 + 1e-2).all()


def test_place_is_the_crop_where_the_image_is_and_fill_elsewhere():
    images = torch.full((2, 3, 20, 20), 200, dtype=torch.uint8)
    boxes = whole_boxes(torch.zeros(2), (20, 20))._replace(left=torch.full((2,), -10.0), width=torch.full((2,), 40.0))
    found = place(images, boxes, (20, 40), flip=torch.tensor([False, True]), fill=BLACK)
    assert found.shape == (2, 3, 20, 40)
    assert (found[:, :, :, 10:30] - 200).abs().max() < 0.5
    assert (found[:, :, :, :10] == 0).all()
    assert (found[:, :, :, 30:] == 0).all()
    assert torch.isfinite(
        place(images, boxes._replace(left=boxes.left - 99), (8, 8), flip=boxes.fits, fill=BLACK)
    ).all()


def test_a_turn_by_90_degrees():
    maps = rotations(torch.tensor([90.0]), (20, 30))
    corner = maps[0] @ torch.tensor([15.0, 10.0, 1.0])  # the centre stays
    torch.testing.assert_close(corner, torch.tensor([15.0, 10.0]))
    right = maps[0] @ torch.tensor([20.0, 10.0, 1.0])
    torch.testing.assert_close(right, torch.tensor([15.0, 15.0]))


def test_jittered_images_keep_their_shape():
    """A circle in a wide image that is stored in a square is a circle again."""
    y, x = torch.meshgrid(torch.arange(60) + 0.5, torch.arange(60) + 0.5, indexing="ij")
    circle = (((x - 30) * 2) ** 2 + (y - 30) ** 2 < 24**2) * 255  # half as wide: stored so
    batch = Batch(circle.byte().expand(1, 3, 60, 60).contiguous(), {}, torch.tensor([0]))
    config = AugmentConfig(crop="jitter", zoom=(1.0, 1.0), flip=False)
    preprocess = Preprocess(image_size=(48, 48), resize="pad", mean=(0.0,), std=(1.0,))
    image = Augment(config, preprocess, seed=0, aspects=torch.tensor([2.0]))(batch, 0).images[0, 0] > 0.5
    wide, tall = int(image.any(0).sum()), int(image.any(1).sum())
    assert abs(wide - tall) <= 1
    assert 17 <= wide <= 21  # 48 pixels are the width of 120, and the circle is 48 of these


def test_limits_must_be_ordered():
    with pytest.raises(ConfigError, match="zoom"):
        AugmentConfig(zoom=(2.0, 0.5))
