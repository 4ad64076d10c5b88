"""Preprocess: how pictures become the input of a model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.config import from_dict, to_dict
from vitrail.data.augment.resample import warp
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError, Unsupported

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def ramp(height: int, width: int) -> torch.Tensor:
    """A picture whose red is x and whose green is y, so that pixels tell where they come from."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).to(torch.uint8)[None]


@pytest.mark.parametrize("shape", [(37, 80), (80, 37), (40, 40), (9, 11)], ids=str)
@pytest.mark.parametrize("size", [(32, 32), (24, 40)], ids=str)
def test_a_window_is_cut_out_and_resized_like_pillow(shape: tuple[int, int], size: tuple[int, int]) -> None:
    y, x = np.mgrid[: shape[0], : shape[1]]
    smooth = np.stack([3 * y, 3 * x, x + y], axis=-1).clip(0, 255).astype(np.uint8)
    rows = min(shape[0], round(shape[1] * size[0] / size[1]))
    columns = min(shape[1], round(shape[0] * size[1] / size[0]))
    top, left = (shape[0] - rows) // 2, (shape[1] - columns) // 2
    cut = Image.fromarray(smooth[top : top + rows, left : left + columns])
    expected = torch.from_numpy(np.array(cut.resize((size[1], size[0]), Image.Resampling.BICUBIC))).permute(2, 0, 1)
    found, _ = Preprocess(image_size=size).fit(torch.from_numpy(smooth).permute(2, 0, 1)[None])
    assert (found[0].int() - expected.int()).abs().max() <= 1


def test_pictures_of_the_right_size_are_only_normalised() -> None:
    images = noise(2, 3, 16, 24)
    preprocess = Preprocess(image_size=(16, 24), mean=MEAN, std=STD)
    fitted, maps = preprocess.fit(images)
    assert torch.equal(fitted, images)
    assert maps.tolist() == [[[1, 0, 0], [0, 1, 0]]] * 2
    expected = (images / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(preprocess(images), expected)
    torch.testing.assert_close(preprocess.normalise(images.float()), expected)


@pytest.mark.parametrize("resize", ["window", "crop", "squash", "pad"])
@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1), (10, 20_000), (1, 1)], ids=str)
def test_banners_are_not_blown_up(resize, shape) -> None:
    preprocess = Preprocess(image_size=(64, 64), resize=resize)
    assert preprocess(noise(1, 1, *shape)).shape == (1, 3, 64, 64)


@pytest.mark.parametrize("like", ["timm", "hf"])
@pytest.mark.parametrize("crop", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("resize", ["window", "crop", "squash", "pad"])
@pytest.mark.parametrize("shape", [(90, 61), (61, 90), (200, 250)], ids=str)
def test_the_map_says_where_each_pixel_comes_from(shape, resize, crop, like) -> None:
    if resize == "window" and crop > 1:
        pytest.skip("a window is at most the picture")
    size = (60, 48)
    fitted, maps = Preprocess(image_size=size, crop=crop, resize=resize, like=like).fit(ramp(*shape))
    y, x = torch.meshgrid(torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5, indexing="ij")
    places = maps[0] @ torch.stack([x.flatten(), y.flatten(), torch.ones(x.numel())])  # 2 N
    inside = (places[0] > 4) & (places[0] < shape[1] - 4) & (places[1] > 4) & (places[1] < shape[0] - 4)
    assert inside.any()
    shown = fitted[0, :2].flatten(1).float()
    assert (shown - (places - 0.5))[:, inside].abs().max() < 1.5


def test_the_map_is_that_of_warp() -> None:
    picture = ramp(64, 64)
    fitted, maps = Preprocess(image_size=(64, 64), resize="crop", crop=0.8).fit(picture)
    warped = warp(picture.float(), maps, torch.zeros(3, 1, 1))
    assert (warped - fitted.float()).abs().max() < 1.5


def test_margins_are_the_mean_or_black() -> None:
    white = torch.full((1, 3, 10, 20), 255, dtype=torch.uint8)
    padded, _ = Preprocess(image_size=(20, 20), resize="pad", mean=(0.1, 0.2, 0.3), std=(1.0,)).fit(white)
    assert padded[0, :, 0, 0].tolist() == [26, 51, 76]
    assert padded[0, :, 10, 10].tolist() == [255] * 3
    larger, _ = Preprocess(image_size=(20, 20), resize="squash", crop=2.0).fit(white)
    assert larger[0, 0, 0, 0] == 0
    assert larger[0, 0, 10, 10] == 255


def test_channels() -> None:
    colour, grey = noise(3, 3, 12, 12), noise(3, 1, 12, 12)
    three, one = Preprocess(image_size=(12, 12)), Preprocess(image_size=(12, 12), channels=1)
    assert torch.equal(three.fit(grey)[0], grey.expand(-1, 3, -1, -1))
    luma = [np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")) for image in colour]
    assert torch.equal(one.fit(colour)[0][:, 0], torch.from_numpy(np.stack(luma)))


def test_reversed_channels_are_reversed_for_the_model_alone() -> None:
    images = noise(1, 3, 8, 8)
    preprocess = Preprocess(image_size=(8, 8), mean=(0.1, 0.2, 0.3), std=(1.0,), channel_order="bgr")
    assert torch.equal(preprocess.fit(images)[0], images)
    expected = images.flip(1) / 255 - torch.tensor((0.1, 0.2, 0.3))[:, None, None]
    torch.testing.assert_close(preprocess(images), expected)


@pytest.mark.parametrize(
    "images", [torch.rand(1, 3, 4, 4), noise(3, 4, 4), noise(1, 2, 4, 4)], ids=["float", "3d", "2"]
)
def test_what_is_not_a_picture_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="uint8"):
        Preprocess(image_size=(4, 4)).fit(images)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mean": (0.1, 0.2)}, "mean"),
        ({"std": (0.0,)}, "std"),
        ({"mean": (float("nan"),)}, "finite"),
        ({"crop": 0.0}, "crop"),
        ({"crop": 1.5}, "window"),
        ({"image_size": (0, 4)}, "image_size"),
    ],
)
def test_impossible_values_are_refused(changes, word) -> None:
    with pytest.raises(ConfigError, match=word):
        Preprocess(**changes)


def test_normalise_wants_fitted_images() -> None:
    with pytest.raises(InputError, match="fit"):
        Preprocess().normalise(noise(1, 1, 8, 8))


def test_plain_values_and_text() -> None:
    preprocess = Preprocess(image_size=(96, 64), mean=MEAN, std=STD, crop=0.9, resize="squash", like="hf")
    assert from_dict(Preprocess, to_dict(preprocess)) == preprocess
    assert from_dict(Preprocess, {"image_size": 224, "mean": 0.5}) == Preprocess()
    assert str(Preprocess()) == "224 x 224, crop 1, bicubic, mean 0.5, std 0.5"
    assert str(preprocess) == "96 x 64, squash 0.9, bicubic, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    assert replace(preprocess, std=(0.5,)).statistics == (MEAN, (0.5, 0.5, 0.5))


def test_the_fill_colour_is_the_mean_in_rgb_order():
    mean = (0.1, 0.2, 0.3)
    assert Preprocess(mean=mean).fill == mean
    assert Preprocess(mean=mean, channel_order="bgr").fill == mean[::-1]
    assert Preprocess(mean=(0.4,), channels=1).fill == (0.4,)


def test_an_image_of_the_right_size_is_not_touched_by_resizing():
    images = torch.randint(0, 256, (2, 3, 12, 10), dtype=torch.uint8)
    assert Preprocess().resized(images, (12, 10)) is images
    assert Preprocess().resized(images, (7, 9)).shape == (2, 3, 7, 9)


def test_a_version_of_torch_without_lanczos_is_told(monkeypatch):
    def refuse(*_, mode, **__):
        raise ValueError(f"not with {mode}")

    monkeypatch.setattr("torch.nn.functional.interpolate", refuse)
    picture = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(Unsupported, match="bicubic"):
        Preprocess(image_size=(4, 4), interpolation="lanczos").fit(picture)
    with pytest.raises(ValueError, match="not with bilinear"):
        Preprocess(image_size=(4, 4), interpolation="bilinear").fit(picture)
