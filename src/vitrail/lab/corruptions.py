"""The fifteen corruptions of Hendrycks and Dietterich (arXiv:1903.12261) at five strengths, on batches of images.

Strengths are those published for images of 32 x 32 pixels. The formulas are theirs, computed anew; three parts differ:
frost is a random texture, not photographs of ice; the plasma of fog is a sum of octaves; zooming is bilinear.
"""

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor


def corrupt(images: Tensor, name: str, strength: int) -> Tensor:
    """Images B C H W from 0 to 1, corrupted with a strength from 1 to 5; random numbers are torch's."""
    function, strengths = CORRUPTIONS[name]
    given = strengths[strength - 1]
    return function(images, *(given if isinstance(given, tuple) else (given,))).clamp(0, 1)


def gaussian_noise(images: Tensor, deviation: float) -> Tensor:
    """Normal noise in each pixel."""
    return images + deviation * torch.randn_like(images)


def shot_noise(images: Tensor, photons: float) -> Tensor:
    """Poisson noise of so many photons for a pixel of brightness 1."""
    return torch.poisson(images * photons) / photons


def impulse_noise(images: Tensor, share: float) -> Tensor:
    """A share of the values becomes 0 or 1."""
    hit, white = torch.rand_like(images) < share, torch.rand_like(images) < 0.5
    return torch.where(hit, white.to(images.dtype), images)


def defocus_blur(images: Tensor, radius: float, alias: float) -> Tensor:
    """A disk, itself blurred a little."""
    reach = 8
    steps = torch.arange(-reach, reach + 1, device=images.device)
    disk = (steps[:, None] ** 2 + steps[None] ** 2 <= radius**2).float()
    kernel = _blurred((disk / disk.sum())[None, None], alias, reach=1)[0, 0]
    padded = F.pad(images, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(padded.flatten(0, 1)[:, None], kernel[None, None]).view_as(images)


def glass_blur(images: Tensor, deviation: float, reach: int, rounds: int) -> Tensor:
    """Pixels change places with others nearby, one after another; blurred before and after."""
    found = (_blurred(images, deviation) * 255).floor() / 255
    count, _, height, width = images.shape
    rows = torch.arange(count, device=images.device)
    for _ in range(rounds):
        for y in range(height - reach, reach, -1):
            for x in range(width - reach, reach, -1):
                dy, dx = torch.randint(-reach, reach, (2, count), device=images.device)
                here, there = found[rows, :, y, x], found[rows, :, y + dy, x + dx]
                found[rows, :, y + dy, x + dx] = here
                found[:, :, y, x] = there
    return _blurred(found, deviation)


def motion_blur(images: Tensor, radius: int, deviation: float, least: float = -45.0, most: float = 45.0) -> Tensor:
    """Each image is blurred along a random direction between two angles, with half of a normal curve."""
    count, channels, height, width = images.shape
    angles = torch.deg2rad(least + (most - least) * torch.rand(count, 1, 1, device=images.device))
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    steps = torch.arange(2 * radius + 1, device=images.device)
    weights = torch.exp(-(steps**2) / (2 * deviation**2))
    weights = weights / weights.sum()
    flat, found = images.flatten(2), torch.zeros_like(images)
    for step, weight in enumerate(weights):
        y = (rows[None, :, None] + torch.round(step * angles.sin())).clamp(0, height - 1)  # B H 1
        x = (columns[None, None, :] + torch.round(step * angles.cos())).clamp(0, width - 1)  # B 1 W
        places = (y * width + x).long().flatten(1)[:, None].expand(-1, channels, -1)  # B C HW
        found += weight * flat.gather(2, places).view_as(images)
    return found


def zoom_blur(images: Tensor, largest: float) -> Tensor:
    """The mean of the image and of all zooms from 1 to `largest` in steps of 0.01."""
    zooms = [1 + 0.01 * step for step in range(round((largest - 1) * 100) + 1)]
    return (images + sum(_zoomed(images, zoom) for zoom in zooms)) / (len(zooms) + 1)


def snow(
    images: Tensor, noise: tuple[float, float, float, float], fall: tuple[int, float], keep: float
) -> Tensor:  # fmt: skip
    """Flakes (normal noise with mean and deviation, zoomed, above a threshold) that fall, over a whitened image."""
    mean, deviation, zoom, threshold = noise
    flakes = _zoomed(mean + deviation * torch.randn_like(images[:, :1]), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    flakes = motion_blur(flakes, *fall, -135.0, -45.0)
    white = torch.maximum(images, 1.5 * images.mean(dim=1, keepdim=True) + 0.5)
    return keep * images + (1 - keep) * white + flakes + flakes.flip(2, 3)


def frost(images: Tensor, keep: float, amount: float) -> Tensor:
    """Bright crystals over the image: ridges of a plasma, instead of photographs of ice."""
    ridges = 1 - (2 * _plasma(images, 2.0) - 1).abs()
    return keep * images + amount * ridges.pow(2)


def fog(images: Tensor, amount: float, decay: float) -> Tensor:
    """A plasma is added, and the brightness scaled back."""
    largest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + amount * _plasma(images, decay)) * largest / (largest + amount)


def brightness(images: Tensor, amount: float) -> Tensor:
    """The value of hue, saturation, value grows; the other two stay."""
    value = images.amax(dim=1, keepdim=True)
    brighter = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * brighter / value.clamp_min(1e-12), brighter.expand_as(images))


def contrast(images: Tensor, factor: float) -> Tensor:
    """Distances from the mean of each channel shrink."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (images - mean) * factor + mean


def elastic_transform(images: Tensor, amount: float, deviation: float, corners: float) -> Tensor:
    """A random affine map, then a smooth random displacement; sizes are shares of the side of the image."""
    count, _, height, width = images.shape
    side = min(height, width)
    third = side // 3
    moved = (2 * torch.rand(count, 3, 2, device=images.device) - 1) * corners * side
    at = torch.tensor([[third, third], [third, -third], [-third, -third]], device=images.device).float()  # 3 x y
    ends = torch.cat([at + moved, torch.ones(count, 3, 1, device=images.device)], dim=2)
    maps = torch.linalg.solve(ends, at.expand(count, 3, 2)).transpose(1, 2)  # B 2 3, from new pixels to old
    pixels = torch.tensor([[1.0, height / width], [width / height, 1.0]], device=images.device)
    maps = torch.cat([maps[:, :, :2] * pixels, maps[:, :, 2:] * 2 / torch.tensor([[width], [height]]).to(maps)], dim=2)
    image = F.grid_sample(images, F.affine_grid(maps, list(images.shape), align_corners=False), **_REFLECT)
    offsets = 2 * torch.rand(count, 2, height, width, device=images.device) - 1
    offsets = _blurred(offsets, deviation * side, truncate=3.0) * amount * side  # pixels
    scaled = offsets.permute(0, 2, 3, 1) * 2 / torch.tensor([width, height], device=images.device)
    rest = torch.eye(2, 3, device=images.device).expand(count, 2, 3)
    grid = F.affine_grid(rest, list(images.shape), align_corners=False)
    return F.grid_sample(image, grid + scaled, **_REFLECT)


def pixelate(images: Tensor, share: float) -> Tensor:
    """Means over a coarser grid, then each pixel takes the nearest of them."""
    found = images
    for axis in (2, 3):
        size = images.shape[axis]
        coarse = max(int(size * share), 1)
        centres = (torch.arange(size, dtype=torch.float64) + 0.5) * coarse / size
        cells = torch.arange(coarse, dtype=torch.float64)[:, None]
        inside = ((centres > cells) & (centres <= cells + 1)).double()  # as Pillow's BOX: pixels by their centres
        down = inside / inside.sum(dim=1, keepdim=True)
        nearest = centres.floor().long().clamp_max(coarse - 1)
        found = torch.tensordot(found, down[nearest].to(images), dims=([axis], [1])).movedim(-1, axis)
    return found


def jpeg_compression(images: Tensor, quality: int) -> Tensor:
    """Written as JPEG by Pillow, and read again."""
    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    found = []
    for picture in pixels:
        with io.BytesIO() as file:
            Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "JPEG", quality=quality)
            found.append(np.atleast_3d(np.asarray(Image.open(file))))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).to(images) / 255


def _blurred(images: Tensor, deviation: float, *, reach: int | None = None, truncate: float = 4.0) -> Tensor:
    """Images after a normal blur, their border repeated."""
    if deviation <= 0:
        return images
    reach = max(int(truncate * deviation + 0.5), 0) if reach is None else reach
    steps = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernel = torch.exp(-(steps**2) / (2 * deviation**2))
    kernel = (kernel / kernel.sum())[None, None]
    padded = F.pad(images, (reach, reach, reach, reach), mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(F.conv2d(padded, kernel[..., None]), kernel[:, :, None]).view_as(images)


def _zoomed(images: Tensor, zoom: float) -> Tensor:
    """The middle of images, enlarged."""
    maps = torch.eye(2, 3, device=images.device) / zoom
    grid = F.affine_grid(maps.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _plasma(images: Tensor, decay: float) -> Tensor:
    """Random clouds B 1 H W from 0 to 1: grids of noise from coarse to fine, each weaker by `decay`."""
    height, width = images.shape[2:]
    total = torch.zeros_like(images[:, :1])
    for octave in range(1, math.ceil(math.log2(max(height, width))) + 1):
        noise = torch.rand(len(images), 1, 2**octave, 2**octave, device=images.device)
        total = total + F.interpolate(noise, (height, width), mode="bilinear", align_corners=True) / decay**octave
    low, high = total.amin(dim=(2, 3), keepdim=True), total.amax(dim=(2, 3), keepdim=True)
    return (total - low) / (high - low)


_REFLECT: Mapping[str, Any] = {"mode": "bilinear", "padding_mode": "reflection", "align_corners": False}
_Strengths = tuple[Any, Any, Any, Any, Any]

CORRUPTIONS: Mapping[str, tuple[Callable[..., Tensor], _Strengths]] = {
    "gaussian noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass blur": (glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion blur": (motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom blur": (zoom_blur, (1.05, 1.10, 1.15, 1.20, 1.25)),
    "snow": (
        snow,
        (
            ((0.1, 0.2, 1, 0.6), (8, 3.0), 0.95),
            ((0.1, 0.2, 1, 0.5), (10, 4.0), 0.9),
            ((0.15, 0.3, 1.75, 0.55), (10, 4.0), 0.9),
            ((0.25, 0.3, 2.25, 0.6), (12, 6.0), 0.85),
            ((0.3, 0.3, 1.25, 0.65), (14, 12.0), 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg compression": (jpeg_compression, (80, 65, 58, 50, 40)),
}
