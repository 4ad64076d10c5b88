"""Where pixels go: crops, shifts and affine maps of whole batches, each sample with its own."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]  # height, width

TRIES = 10  # boxes drawn for each sample until one fits, as in torchvision
BOX_DRAWS = 2 * TRIES + 2
LARGE = 64  # pixels of a side


class Boxes(NamedTuple):
    """One box a sample, in whole pixels, each B float32; `fits` says whether a try fitted at all."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    fits: Tensor

    def mask(self, size: Size) -> Tensor:
        """Which pixels are in the boxes: B 1 H W bool."""
        rows = _inside(self.top, self.height, size[0])  # B H
        columns = _inside(self.left, self.width, size[1])  # B W
        return (rows[:, :, None] & columns[:, None, :])[:, None]


def random_boxes(draws: Tensor, size: Size, scale: tuple[float, float], ratio: tuple[float, float]) -> Boxes:
    """Boxes of a share of the area and a ratio of width to height, from uniform numbers B BOX_DRAWS.

    The first of ten tries that fits is taken, as in torchvision; where none does, the first, cut to the image.
    """
    height, width = size
    shares, ratios, place = draws.split([TRIES, TRIES, 2], dim=1)
    area = (scale[0] + (scale[1] - scale[0]) * shares) * (height * width)  # B T
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * ratios).exp()
    heights, widths = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fitting = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first = fitting.byte().argmax(1, keepdim=True)
    chosen_height = heights.gather(1, first)[:, 0].clamp(1, height)
    chosen_width = widths.gather(1, first)[:, 0].clamp(1, width)
    top = (place[:, 0] * (height - chosen_height + 1)).floor()
    left = (place[:, 1] * (width - chosen_width + 1)).floor()
    return Boxes(top, left, chosen_height, chosen_width, fitting.any(1))


def crop(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """The boxes resized to one size, mirrored where `flip` B says so: B C H W -> float32 B C *size.

    Bicubic and antialiased, as `interpolate` does it. Values may pass those of the image a little, as a cubic does.
    """
    # Matrices grow with the square of the side. On a CPU that costs more than going from image to image, from here on.
    if images.device.type == "cpu" and max(*images.shape[2:], *size) > LARGE:
        return crop_each(images, boxes, size, flip=flip)
    return crop_all(images, boxes, size, flip=flip)


def crop_all(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """`crop` as two products of matrices for the whole batch; waits for nothing on a GPU."""
    channels, height, width = images.shape[1:]
    straight = torch.zeros_like(flip)
    rows = axis_weights(boxes.top, boxes.height, height, size[0], mirror=straight)  # B H' H
    columns = axis_weights(boxes.left, boxes.width, width, size[1], mirror=flip)  # B W' W
    with torch.autocast(images.device.type, enabled=False):  # weights need more than the 8 bits of a bf16
        # Levels 0 to 255, which even TF32 holds exactly: with it the error is below a fifth of a level.
        across = images.float().flatten(1, 2) @ columns.mT  # B CH W'
        parts = [rows @ part for part in across.unflatten(1, (channels, height)).unbind(1)]  # each B H' W'
    return torch.stack(parts, dim=1)


def crop_each(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """`crop` by slices, one image after the other."""
    places = torch.stack(boxes[:4], dim=1).long().tolist()
    resized = images.new_empty(*images.shape[:2], *size, dtype=torch.float32)
    for index, (top, left, height, width) in enumerate(places):
        part = images[index : index + 1, :, top : top + height, left : left + width].float()
        resized[index] = F.interpolate(part, size=size, mode="bicubic", antialias=True)[0]
    return torch.where(flip[:, None, None, None], resized.flip(3), resized)


def axis_weights(start: Tensor, length: Tensor, size_in: int, size_out: int, *, mirror: Tensor) -> Tensor:
    """What each pixel of a line gives to each pixel of its resized part: B out in; start, length and mirror are B."""
    device = start.device
    steps = torch.arange(size_out, device=device)
    steps = torch.where(mirror[:, None], size_out - 1 - steps, steps)  # B out
    pixels = torch.arange(size_in, device=device) + 0.5
    scale = (length / size_out)[:, None]
    centres = start[:, None] + (steps + 0.5) * scale  # B out
    reach = scale.clamp(min=1)  # where the image shrinks, the filter widens: that is antialiasing
    distance = ((pixels - centres[:, :, None]) / reach[:, :, None]).abs()  # B out in
    weights = _cubic(distance) * _inside(start, length, size_in)[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5: one polynomial up to 1, another up to 2; both vanish where they end."""
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    return (1.5 * near - 2.5) * near * near + 1 + (((2.5 - 0.5 * far) * far - 4) * far + 2)


def _inside(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Which pixels of a line lie in a part of it: B size bool."""
    pixels = torch.arange(size, device=start.device)
    return (pixels >= start[:, None]) & (pixels < (start + length)[:, None])


def resize(images: Tensor, size: Size) -> Tensor:
    """Whole images at another size, bicubic and antialiased: B C H W -> float32 B C *size; unchanged at their own."""
    pixels = images.float()
    if images.shape[2:] == size:
        return pixels
    return F.interpolate(pixels, size=size, mode="bicubic", antialias=True)


def shift(images: Tensor, down: Tensor, right: Tensor, padding: int) -> Tensor:
    """Padded with zeros on all sides, then a window of the old size, `down` and `right` of its first place: B C H W."""
    height, width = images.shape[2:]
    padded = F.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # B C 2p+1 2p+1 H W, a view
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def warp(images: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Each pixel from where its map points, bilinear; `fill` (C 1 1) outside: float B C H W, maps B 2 3 -> B C H W.

    A map takes (x, y, 1) of an output pixel to x, y of the input, in pixels, the first pixel's centre at 0.5.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device) + 0.5  # W
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]  # H 1
    terms = maps[:, :, :, None, None]  # B 2 3 1 1
    # Products and sums, not a matrix product: TF32 would move pixels.
    places = terms[:, :, 0] * x + terms[:, :, 1] * y + terms[:, :, 2]  # B 2 H W
    grid = torch.stack([places[:, 0] * (2 / width) - 1, places[:, 1] * (2 / height) - 1], dim=-1)  # B H W 2
    return F.grid_sample(images - fill, grid, mode="bilinear", align_corners=False) + fill
