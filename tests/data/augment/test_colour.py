"""Colours against torchvision's on floats, one image at a time."""

import pytest
import support.peers  # noqa: F401  makes torchvision loadable, so comes first
import torch
from torchvision.transforms import v2

from vitrail.data.augment.colour import blend, grey, jitter, normalise, smooth, turn_hue

peer = v2.functional


def pictures(count: int, channels: int = 3) -> torch.Tensor:
    """Noise, with grey, black, white and pure colours among the pixels."""
    images = torch.rand(count, channels, 9, 7)
    images[:, :, 0] = images[:, :1, 0]
    images[:, :, 1, :3] = torch.eye(3)[:channels]
    images[:, :, 2, 0], images[:, :, 2, 1] = 0, 1
    return images


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_smooth(channels):
    images = pictures(3, channels)
    close(grey(images), peer.rgb_to_grayscale(images, num_output_channels=1))
    close(smooth(images), peer.adjust_sharpness(images, 0.0))


def test_smooth_leaves_lines_alone():
    assert torch.equal(smooth(torch.ones(1, 1, 2, 9)), torch.ones(1, 1, 2, 9))


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
def test_blends(factor):
    images, amount = pictures(4), torch.full((4, 1, 1, 1), factor - 1)
    close(blend(images, torch.zeros(()), amount), peer.adjust_brightness(images, factor))
    close(blend(images, grey(images), amount), peer.adjust_saturation(images, factor))
    close(blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), amount), peer.adjust_contrast(images, factor))
    close(blend(images, smooth(images), amount), peer.adjust_sharpness(images, factor))


def test_hue_turns_each_image_by_its_own_part():
    images, turns = pictures(5), torch.tensor([-0.5, -0.1, 0.0, 0.2, 0.5])
    found = turn_hue(images, turns[:, None, None])
    for image, turn, turned in zip(images, turns, found, strict=True):
        close(turned, peer.adjust_hue(image, float(turn)))


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_is_torchvision_s_in_a_fixed_order(channels):
    images, draws = pictures(6, channels), torch.rand(6, 4)
    found = jitter(images, draws, 0.8)
    for image, draw, ours in zip(images, ((2 * draws - 1) * 0.8).tolist(), found, strict=True):
        theirs = peer.adjust_contrast(peer.adjust_brightness(image, 1 + draw[0]), 1 + draw[1])
        if channels == 3:
            theirs = peer.adjust_hue(peer.adjust_saturation(theirs, 1 + draw[2]), draw[3] / 4)
        close(ours, theirs)


def test_middle_of_the_draw_changes_nothing():
    images = pictures(2)
    close(jitter(images, torch.full((2, 4), 0.5), 1.0), images)


def test_normalise():
    images = pictures(2)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    close(normalise(images, mean, std), peer.normalize(images, list(mean), list(std)))
