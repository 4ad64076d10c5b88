import io
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.lab.corruptions import (
    CORRUPTIONS,
    _blurred,
    brightness,
    contrast,
    corrupt,
    defocus_blur,
    elastic_transform,
    gaussian_noise,
    glass_blur,
    impulse_noise,
    jpeg_compression,
    motion_blur,
    pixelate,
    shot_noise,
    snow,
    zoom_blur,
)

EACH = pytest.mark.parametrize("name", CORRUPTIONS)


def pictures(count: int = 4, channels: int = 3, side: int = 32) -> Tensor:
    """Smooth random images B C H W."""
    coarse = torch.rand(count, channels, 6, 6, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_there_are_fifteen() -> None:
    assert len(CORRUPTIONS) == 15


@EACH
@pytest.mark.parametrize("channels", [1, 3])
def test_images_stay_images_and_the_batch_is_left_alone(name: str, channels: int) -> None:
    images = pictures(2, channels, 28)
    before = images.clone()
    for strength in (1, 5):
        found = corrupt(images, name, strength)
        assert found.shape == images.shape
        assert found.min() >= 0
        assert found.max() <= 1
        assert torch.isfinite(found).all()
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "elastic transform"])
def test_the_highest_strength_changes_more_than_the_lowest(name: str) -> None:
    """An elastic transform is left out: with its strengths, the affine map shrinks and the local one grows."""
    images = pictures(16)
    low, high = ((corrupt(images, name, strength) - images).square().mean() for strength in (1, 5))
    assert high > low > 0


def test_noises_have_the_deviation_that_they_say() -> None:
    grey = torch.full((4, 1, 64, 64), 0.5)
    assert torch.isclose(gaussian_noise(grey, 0.1).std(), torch.tensor(0.1), rtol=0.05)
    assert torch.isclose(shot_noise(grey, 50.0).var(), torch.tensor(0.5 / 50), rtol=0.1)
    changed = impulse_noise(grey, 0.07)
    assert abs(float((changed != 0.5).float().mean()) - 0.07) < 0.01
    assert abs(float((changed == 1).sum() / (changed != 0.5).sum()) - 0.5) < 0.05


def test_blurs_keep_what_is_even_and_the_sum_of_a_point() -> None:
    even = torch.full((2, 1, 32, 32), 0.3)
    point = torch.zeros(2, 1, 33, 33)
    point[:, :, 16, 16] = 1
    for blur in (
        lambda images: defocus_blur(images, 1.5, 0.1),
        lambda images: glass_blur(images, 0.4, 1, 2),
        lambda images: motion_blur(images, 6, 2.0),
        lambda images: zoom_blur(images, 1.1),
        lambda images: elastic_transform(images, 0.05, 0.1, 0.05),
    ):
        assert torch.allclose(blur(even), even, atol=0.005)
    for spread in (defocus_blur(point, 1.5, 0.1), motion_blur(point, 6, 2.0)):
        assert torch.allclose(spread.sum(dim=(1, 2, 3)), torch.ones(2), atol=1e-5)
        assert spread.max() < 0.5


def test_the_normal_blur_is_scipys() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    images = pictures(1, 1)
    expected = ndimage.gaussian_filter(images[0, 0].numpy(), 1.3, mode="nearest", truncate=4.0)
    assert np.abs(_blurred(images, 1.3)[0, 0].numpy() - expected).max() < 1e-5


def test_motion_blur_of_a_point_is_half_a_normal_curve_along_its_direction() -> None:
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 16, 16] = 1
    row = motion_blur(point, 4, 1.5, 0.0, 0.0)[0, 0, 16]  # the direction of the x axis
    weights = torch.exp(-(torch.arange(9) ** 2) / (2 * 1.5**2))
    assert torch.allclose(row[8:17].flip(0), weights / weights.sum(), atol=1e-6)


def test_brightness_and_contrast_by_hand() -> None:
    colour = torch.tensor([0.4, 0.2, 0.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    assert torch.allclose(brightness(colour, 0.2)[0, :, 0, 0], torch.tensor([0.6, 0.3, 0.0]))
    assert torch.allclose(brightness(torch.zeros(1, 3, 1, 1), 0.2), torch.full((1, 3, 1, 1), 0.2))
    edge = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    assert torch.allclose(contrast(edge, 0.3).flatten(), torch.tensor([0.35, 0.65]))


def test_pixelate_is_pillows_box_filter() -> None:
    images = pictures(1, 1)
    for share in (0.25, 0.65, 0.75, 0.95):
        small = int(32 * share)
        picture = Image.fromarray(images[0, 0].numpy(), mode="F").resize((small, small), Image.Resampling.BOX)
        expected = np.asarray(picture.resize((32, 32), Image.Resampling.NEAREST))
        assert np.abs(pixelate(images, share)[0, 0].numpy() - expected).max() < 1e-6


def test_jpeg_is_that_of_one_picture_at_a_time() -> None:
    images = (pictures(2) * 255).round() / 255
    file = io.BytesIO()
    Image.fromarray((images[1] * 255).to(torch.uint8).permute(1, 2, 0).numpy()).save(file, "JPEG", quality=40)
    expected = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255
    assert torch.allclose(jpeg_compression(images, 40)[1], expected)


def test_an_elastic_transform_of_nothing_changes_nothing() -> None:
    images = pictures(2, 1, 28)
    assert torch.allclose(elastic_transform(images, 0.0, 0.0, 0.0), images, atol=1e-5)


def one_picture(side: int) -> Tensor:
    """1 3 H W, of whole steps of 1/255."""
    return (pictures(1, 3, side) * 255).round() / 255


def by_imagecorruptions(images: Tensor, name: str) -> Tensor:
    """The same picture 1 3 H W at the lowest strength that imagecorruptions has for large images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what other packages will remove
        peer = pytest.importorskip("imagecorruptions")
        picture = (images[0] * 255).to(torch.uint8).permute(1, 2, 0).numpy()
        found = np.array(peer.corrupt(picture, corruption_name=name, severity=1))
    return torch.from_numpy(found).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("contrast", lambda images: contrast(images, 0.4)),
        ("brightness", lambda images: brightness(images, 0.1)),
        ("pixelate", lambda images: pixelate(images, 0.6)),
        ("jpeg_compression", lambda images: jpeg_compression(images, 25)),
        ("defocus_blur", lambda images: defocus_blur(images, 3, 0.1)),
        ("zoom_blur", lambda images: zoom_blur(images, 1.1)),
    ],
)
def test_they_agree_with_imagecorruptions_where_it_is_installed(name: str, ours: Callable[[Tensor], Tensor]) -> None:
    images = one_picture(224)  # the peer's zooms begin at whole pixels, which are off by up to one: little of 224
    assert (ours(images).clamp(0, 1) - by_imagecorruptions(images, name)).abs().mean() < 0.01


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("gaussian_noise", lambda images: gaussian_noise(images, 0.08)),
        ("shot_noise", lambda images: shot_noise(images, 60)),
        ("impulse_noise", lambda images: impulse_noise(images, 0.03)),
        ("motion_blur", lambda images: motion_blur(images, 10, 3.0)),
        ("snow", lambda images: snow(images, (0.1, 0.3, 3, 0.5), (10, 4.0), 0.8)),
        ("elastic_transform", lambda images: elastic_transform(images, 0.0625, 0.01, 0.0)),
    ],
)
def test_random_ones_change_images_as_much_as_imagecorruptions_does(
    name: str, ours: Callable[[Tensor], Tensor]
) -> None:
    """Not pixel by pixel: the mean picture of 48 draws, and how far a draw is from the picture."""
    np.random.seed(0)
    images = one_picture(64)
    theirs = torch.cat([by_imagecorruptions(images, name) for _ in range(48)])
    found = ours(images.expand(48, -1, -1, -1)).clamp(0, 1)
    changes = [(draws - images).square().mean().sqrt() for draws in (found, theirs)]
    assert torch.isclose(changes[0], changes[1], rtol=0.2), changes
    assert (found.mean(dim=0) - theirs.mean(dim=0)).abs().mean() < 0.03
