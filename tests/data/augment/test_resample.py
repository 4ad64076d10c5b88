"""Crops, shifts and maps of batches against the same done to one image at a time."""

import pytest
import support.peers  # noqa: F401  makes torchvision loadable, so comes first
import torch
import torch.nn.functional as F
from torchvision.transforms import v2

from vitrail.data.augment import resample
from vitrail.data.augment.resample import BOX_DRAWS, Boxes, crop, crop_all, crop_each, random_boxes, shift, warp
from vitrail.data.randomness import Stream

SIZES = [((32, 32), (32, 32)), ((40, 56), (24, 32)), ((30, 20), (64, 48)), ((17, 23), (5, 7))]


def photos(count: int, channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Noise and soft shapes, with pixels at both ends of the range."""
    soft = F.interpolate(torch.rand(count, channels, 4, 4), size=size, mode="bicubic", antialias=True) * 300 - 20
    return (soft + 20 * torch.randn_like(soft)).clamp(0, 255).byte()


def boxes_for(count: int, size: tuple[int, int], scale=(0.08, 1.0)) -> Boxes:
    return random_boxes(Stream(0, 0, torch.arange(count)).uniform("crop", BOX_DRAWS), size, scale, (3 / 4, 4 / 3))


@pytest.mark.parametrize(("size", "wanted"), SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("way", [crop_all, crop_each])
def test_crop_is_slicing_and_interpolating(size, wanted, channels, way):
    images, boxes = photos(12, channels, size), boxes_for(12, size)
    flip = torch.arange(12) % 3 == 0
    found = way(images, boxes, wanted, flip=flip)
    for index, image in enumerate(images.float()):
        top, left, height, width = (int(field[index]) for field in boxes[:4])
        part = image[None, :, top : top + height, left : left + width]
        alone = F.interpolate(part, size=wanted, mode="bicubic", antialias=True)[0]
        alone = alone.flip(2) if flip[index] else alone
        torch.testing.assert_close(found[index], alone, rtol=0, atol=255 * 1e-5)


def test_crop_of_everything_changes_nothing():
    images = photos(2, 3, (16, 24))
    zero, tall, wide = torch.zeros(2), torch.full((2,), 16.0), torch.full((2,), 24.0)
    whole = Boxes(zero, zero, tall, wide, zero == 0)
    assert torch.equal(crop(images, whole, (16, 24), flip=zero > 0), images.float())
    assert torch.equal(crop(images, whole, (16, 24), flip=zero == 0), images.float().flip(3))


def test_crop_goes_from_image_to_image_where_that_is_faster(monkeypatch):
    images, boxes, flip = photos(3, 1, (40, 20)), boxes_for(3, (40, 20)), torch.tensor([True, False, False])
    for large, way in ((39, crop_each), (40, crop_all)):
        monkeypatch.setattr(resample, "LARGE", large)
        assert torch.equal(crop(images, boxes, (12, 9), flip=flip), way(images, boxes, (12, 9), flip=flip))
    assert not torch.equal(crop_each(images, boxes, (12, 9), flip=flip), crop_all(images, boxes, (12, 9), flip=flip))


def test_crop_keeps_its_precision_under_autocast():
    images, boxes = photos(4, 3, (32, 32)), boxes_for(4, (32, 32))
    plain = crop(images, boxes, (16, 16), flip=torch.zeros(4, dtype=torch.bool))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(crop(images, boxes, (16, 16), flip=torch.zeros(4, dtype=torch.bool)), plain)


def test_boxes_are_those_of_torchvision_in_distribution():
    size, count = (48, 64), 4000
    boxes = boxes_for(count, size, scale=(0.2, 1.0))
    peer = v2.RandomResizedCrop(16, scale=(0.2, 1.0))
    image = torch.zeros(1, *size)
    drawn = [peer.make_params([image]) for _ in range(count)]
    for name in ("top", "left", "height", "width"):
        theirs = torch.tensor([float(draw[name]) for draw in drawn])
        ours = getattr(boxes, name)
        error = (theirs.var() / count + ours.var() / count).sqrt()
        assert abs(theirs.mean() - ours.mean()) < 4 * error, name
        assert 0.9 < theirs.std() / ours.std() < 1.1, name


def test_boxes_lie_in_the_image():
    boxes = boxes_for(5000, (20, 90))
    assert 0.5 < boxes.fits.float().mean() < 1  # some fall back, and those too must lie inside
    for start, length, size in ((boxes.top, boxes.height, 20), (boxes.left, boxes.width, 90)):
        assert (start >= 0).all()
        assert (length >= 1).all()
        assert (start + length <= size).all()
        assert (start == start.round()).all()
        assert ((start + length) == size).any()


def test_box_that_never_fits_is_scaled_down():
    boxes = random_boxes(torch.rand(50, BOX_DRAWS), (64, 8), (0.9, 1.0), (2.0, 3.0))
    assert not boxes.fits.any()
    assert (boxes.width == 8).all()
    assert ((boxes.height >= 2) & (boxes.height <= 4)).all()  # the ratio stays


def test_mask_marks_the_box():
    box = Boxes(*(torch.tensor([number]) for number in (1.0, 2.0, 2.0, 3.0)), fits=torch.tensor([True]))
    expected = torch.zeros(4, 6, dtype=torch.bool)
    expected[1:3, 2:5] = True
    assert torch.equal(box.mask((4, 6)), expected[None, None])


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_shift_is_padding_and_slicing(padding):
    images = photos(9, 3, (12, 10))
    down, right = torch.randint(0, 2 * padding + 1, (2, 9))
    found = shift(images, down, right, padding)
    padded = F.pad(images, (padding,) * 4)
    for index in range(9):
        y, x = int(down[index]), int(right[index])
        assert torch.equal(found[index], padded[index, :, y : y + 12, x : x + 10])


def test_warp_takes_pixels_from_where_the_map_points():
    images, fill = photos(3, 3, (6, 8)).float(), torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    two_right = torch.tensor([[1.0, 0.0, -2.0], [0.0, 1.0, 0.0]]).expand(3, 2, 3)
    found = warp(images, two_right, fill)
    torch.testing.assert_close(found[..., 2:], images[..., :-2], rtol=0, atol=1e-3)
    torch.testing.assert_close(found[..., :2], fill.expand(3, 3, 6, 2), rtol=0, atol=1e-3)
    turned = torch.tensor([[0.0, -1.0, 6.0], [1.0, 0.0, 0.0]]).expand(3, 2, 3)
    square = images[..., :6]
    torch.testing.assert_close(warp(square, turned, fill), square.rot90(-1, (2, 3)).flip(2, 3), rtol=0, atol=1e-3)
