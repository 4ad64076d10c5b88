"""Occlusion against a loop, RISE against its formula."""

import pytest
import torch
from support.registered import pictures, tiny

from vitrail.errors import ConfigError
from vitrail.explain.methods.perturbation import OcclusionConfig, RISEConfig, windows
from vitrail.explain.methods.target import Target


def test_occlusion_against_a_loop() -> None:
    torch.manual_seed(0)
    model = tiny(image_size=(16, 24)).double()
    images, target = pictures(model, dtype=torch.float64), torch.tensor([1, 4])
    total, count = torch.zeros(2, 16, 24).double(), torch.zeros(16, 24).double()
    for top in (0, 5, 10):  # windows of 6, the last ends with the image
        for left in (0, 5, 10, 15, 18):
            hidden = images.clone()
            hidden[:, :, top : top + 6, left : left + 6] = 0.5
            fall = Target(target).output(model(images)) - Target(target).output(model(hidden))
            total[:, top : top + 6, left : left + 6] += fall[:, None, None]
            count[top : top + 6, left : left + 6] += 1
    found = OcclusionConfig(size=6, stride=5, fill=0.5).maps(model, images, Target(target))
    torch.testing.assert_close(found, (total / count).detach())


def test_windows_cover_every_pixel_and_end_with_the_image() -> None:
    covered = windows(7, 5, size=3, stride=2)
    assert covered.shape == (3 * 2, 7, 5)
    assert covered.sum(dim=0).min() == 1
    assert (covered.sum(dim=(1, 2)) == 9).all()
    assert windows(4, 4, size=4, stride=2).shape == (1, 4, 4)


def test_a_window_that_is_too_large() -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="window of 99 pixels"):
        OcclusionConfig(size=99).maps(model, pictures(model), Target(torch.tensor([0, 0])))


def test_rise_is_the_mean_of_masks_by_probability() -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model, 3), torch.tensor([1, 4, 0])
    config = RISEConfig(masks=5, cells=3, open=0.4)
    masks = config.draw(5, model.config.image_size, torch.Generator().manual_seed(0))
    total = torch.zeros(3, *model.config.image_size)
    for mask in masks:
        total += Target(target).score(model(images * mask))[:, None, None] * mask
    torch.testing.assert_close(config.maps(model, images, Target(target)), (total / 5 / 0.4).detach())


def test_rise_has_the_same_masks_for_one_image_and_for_many() -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model, 4), torch.tensor([1, 4, 0, 0])
    config = RISEConfig(masks=70)
    together, alone = config.maps(model, images, Target(target)), config.maps(model, images[2:3], Target(target[2:3]))
    torch.testing.assert_close(together[2:3], alone)


def test_masks_lie_between_closed_and_open() -> None:
    masks = RISEConfig(open=0.3).draw(400, (16, 24), torch.Generator().manual_seed(1))
    assert masks.shape == (400, 16, 24)
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert masks.mean().item() == pytest.approx(0.3, abs=0.02)
    assert masks.mean(dim=0).std() < 0.03  # no place is preferred


def test_masks_that_are_never_open() -> None:
    with pytest.raises(ConfigError, match="open"):
        RISEConfig(open=0.0)
