"""Geometry of batches: crops, shifts and affine maps, with one box or map per sample."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]  # height, width

TRIES = 10  # boxes drawn for each sample; the first that fits is used, as in torchvision
BOX_DRAWS = 2 * TRIES + 2
LARGE = 64  # pixels per side


class Boxes(NamedTuple):
    """One box per sample, in whole pixels, each B float32; `fits`: whether one of the tries fitted."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    fits: Tensor

    def maps(self, size: Size, *, flip: Tensor) -> Tensor:
        """Maps B 2 3 from pixels of the boxes, resized to `size` and flipped where `flip`, to those of the image."""
        across, down = self.width / size[1], self.height / size[0]
        zero = torch.zeros_like(across)
        sign = torch.where(flip, -1.0, 1.0)
        first = self.left + torch.where(flip, self.width, 0.0)
        rows = (sign * across, zero, first, zero, down, self.top)
        return torch.stack(rows, dim=-1).unflatten(-1, (2, 3))

    def mask(self, size: Size) -> Tensor:
        """Which pixels are in the boxes: B 1 H W bool."""
        rows = _inside(self.top, self.height, size[0])  # B H
        columns = _inside(self.left, self.width, size[1])  # B W
        return (rows[:, :, None] & columns[:, None, :])[:, None]


def random_boxes(
    draws: Tensor, size: Size, scale: tuple[float, float], ratio: tuple[float, float], aspect: Tensor | None = None
) -> Boxes:
    """Boxes with a share of the area and a ratio of width to height, from uniform numbers B BOX_DRAWS.

    The first of ten tries that fits is used, as in torchvision; if none fits, the first, scaled down. `aspect` B is how
    much wider each image is than it is stored: boxes have their ratio in the original image.
    """
    height, width = size
    shares, ratios, position = draws.split([TRIES, TRIES, 2], dim=1)
    area = (scale[0] + (scale[1] - scale[0]) * shares) * (height * width)  # B T
    low, high = math.log(ratio[0]), math.log(ratio[1])
    wide = (low + (high - low) * ratios).exp()
    if aspect is not None:
        wide = wide / aspect[:, None]
    heights, widths = (area / wide).sqrt().round(), (area * wide).sqrt().round()
    fitting = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first = fitting.byte().argmax(1, keepdim=True)
    tall, broad = heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]
    shrink = torch.minimum(height / tall, width / broad).clamp(max=1)  # 1 for a box that fits
    chosen_height = (tall * shrink).round().clamp(1, height)
    chosen_width = (broad * shrink).round().clamp(1, width)
    top = (position[:, 0] * (height - chosen_height + 1)).floor()
    left = (position[:, 1] * (width - chosen_width + 1)).floor()
    return Boxes(top, left, chosen_height, chosen_width, fitting.any(1))


def whole_boxes(like: Tensor, size: Size) -> Boxes:
    """Boxes around whole images of one size, one for each entry of `like` B."""
    zero = torch.zeros(len(like), device=like.device)
    return Boxes(zero, zero, zero + size[0], zero + size[1], fits=zero == 0)


def whole_maps(like: Tensor) -> Tensor:
    """Maps that move nothing, as many as `like` has: B 2 3 -> B 2 3."""
    return torch.eye(2, 3, device=like.device).expand_as(like)


def compose(first: Tensor, then: Tensor) -> Tensor:
    """The map of two moves in this order; maps go from new pixels to old: B 2 3, B 2 3 -> B 2 3."""
    linear = (first[:, :, :2, None] * then[:, None, :, :]).sum(2)  # B 2 3; not a matrix product, which TF32 would round
    return torch.cat([linear[:, :, :2], linear[:, :, 2:] + first[:, :, 2:]], dim=2)


def shifted(maps: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
    """Maps B 2 3 of images that were also shifted by whole pixels B, before the flip that `maps` include."""
    zero = torch.zeros_like(maps[:, 0, 0])
    sign = torch.where(flip, -1.0, 1.0)
    rows = (zero + 1, zero, sign * right, zero, zero + 1, down.to(maps.dtype))
    return compose(maps, torch.stack(rows, dim=-1).unflatten(-1, (2, 3)))


def crop(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """The boxes resized to one size, and flipped where `flip` B: B C H W -> float32 B C *size.

    Bicubic and antialiased, as `F.interpolate`. Values may overshoot those of the image a little.
    """
    # The matrices grow with the square of the side: above this size, a loop over images is faster on a CPU.
    if images.device.type == "cpu" and max(*images.shape[2:], *size) > LARGE:
        return crop_each(images, boxes, size, flip=flip)
    return crop_all(images, boxes, size, flip=flip)


def crop_all(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """`crop` as two matrix products for the whole batch; never synchronises with a GPU."""
    channels, height, width = images.shape[1:]
    straight = torch.zeros_like(flip)
    rows = axis_weights(boxes.top, boxes.height, height, size[0], mirror=straight)  # B H' H
    columns = axis_weights(boxes.left, boxes.width, width, size[1], mirror=flip)  # B W' W
    with torch.autocast(images.device.type, enabled=False):  # the weights need more precision than bf16 has
        # Levels 0 to 255 are exact even in TF32; the error is then below a fifth of a level.
        across = images.float().flatten(1, 2) @ columns.mT  # B CH W'
        parts = [rows @ part for part in across.unflatten(1, (channels, height)).unbind(1)]  # each B H' W'
    return torch.stack(parts, dim=1)


def place(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor, fill: Tensor) -> Tensor:
    """As `crop`, for boxes that lie between pixels and may reach outside of the image, where `fill` C 1 1 is."""
    rows = _covered(boxes.top, boxes.height, images.shape[2], size[0], mirror=torch.zeros_like(flip))  # B H'
    columns = _covered(boxes.left, boxes.width, images.shape[3], size[1], mirror=flip)  # B W'
    covered = (rows[:, :, None] & columns[:, None, :])[:, None]  # B 1 H' W'
    return torch.where(covered, crop_all(images, boxes, size, flip=flip), fill)


def _covered(start: Tensor, length: Tensor, size_in: int, size_out: int, *, mirror: Tensor) -> Tensor:
    """Which pixels of the output have their centre in the image, along one axis: B out bool."""
    steps = torch.arange(size_out, device=start.device) + 0.5
    steps = torch.where(mirror[:, None], size_out - steps, steps)  # B out
    centres = start[:, None] + steps * (length / size_out)[:, None]
    return (centres > 0) & (centres < size_in)


def rotations(degrees: Tensor, size: Size) -> Tensor:
    """Maps B 2 3 from pixels of images that are turned about their centre by angles B to those before."""
    turn = torch.deg2rad(degrees)
    cosine, sine, x, y = turn.cos(), turn.sin(), size[1] / 2, size[0] / 2
    rows = (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)
    return torch.stack(rows, dim=-1).unflatten(-1, (2, 3))


def upside_down(drawn: Tensor, height: int) -> Tensor:
    """Maps B 2 3 from pixels of images of which those `drawn` B are upside down to those before."""
    one, zero = torch.ones_like(drawn, dtype=torch.float32), torch.zeros_like(drawn, dtype=torch.float32)
    rows = (one, zero, zero, zero, torch.where(drawn, -one, one), torch.where(drawn, height * one, zero))
    return torch.stack(rows, dim=-1).unflatten(-1, (2, 3))


def crop_each(images: Tensor, boxes: Boxes, size: Size, *, flip: Tensor) -> Tensor:
    """`crop` in a loop over images."""
    corners = torch.stack(boxes[:4], dim=1).long().tolist()
    resized = images.new_empty(*images.shape[:2], *size, dtype=torch.float32)
    for index, (top, left, height, width) in enumerate(corners):
        part = images[index : index + 1, :, top : top + height, left : left + width].float()
        resized[index] = F.interpolate(part, size=size, mode="bicubic", antialias=True)[0]
    return torch.where(flip[:, None, None, None], resized.flip(3), resized)


def axis_weights(start: Tensor, length: Tensor, size_in: int, size_out: int, *, mirror: Tensor) -> Tensor:
    """Weights B out in of input pixels for output pixels along one axis; start, length and mirror are B."""
    device = start.device
    steps = torch.arange(size_out, device=device)
    steps = torch.where(mirror[:, None], size_out - 1 - steps, steps)  # B out
    pixels = torch.arange(size_in, device=device) + 0.5
    scale = (length / size_out)[:, None]
    centres = start[:, None] + (steps + 0.5) * scale  # B out
    reach = scale.clamp(min=1)  # antialiasing: the filter is wider where the image shrinks
    distance = ((pixels - centres[:, :, None]) / reach[:, :, None]).abs()  # B out in
    weights = _cubic(distance) * _inside(start, length, size_in)[:, None]
    return weights / weights.sum(dim=2, keepdim=True).clamp(min=1e-6)  # none, where a box reaches outside


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5: one polynomial up to 1, another from 1 to 2."""
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    return (1.5 * near - 2.5) * near * near + 1 + (((2.5 - 0.5 * far) * far - 4) * far + 2)


def _inside(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Which pixels of an axis have their centre in a range: B size bool."""
    pixels = torch.arange(size, device=start.device) + 0.5
    return (pixels > start[:, None]) & (pixels < (start + length)[:, None])


def shift(images: Tensor, down: Tensor, right: Tensor, padding: int) -> Tensor:
    """Pads with zeros on all sides, then crops to the old size at `down` and `right` B: B C H W."""
    height, width = images.shape[2:]
    padded = F.pad(images, (padding,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # B C 2p+1 2p+1 H W, a view
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def warp(images: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Samples each pixel where its map points, bilinear; `fill` (C 1 1) outside: B C H W, maps B 2 3 -> B C H W.

    A map takes (x, y, 1) of an output pixel to x, y of the input, in pixels, the first pixel's centre at 0.5.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device) + 0.5  # W
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]  # H 1
    terms = maps[:, :, :, None, None]  # B 2 3 1 1
    # Products and sums, not a matrix product: TF32 would move pixels.
    points = terms[:, :, 0] * x + terms[:, :, 1] * y + terms[:, :, 2]  # B 2 H W
    grid = torch.stack([points[:, 0] * (2 / width) - 1, points[:, 1] * (2 / height) - 1], dim=-1)  # B H W 2
    return F.grid_sample(images - fill, grid, mode="bilinear", align_corners=False) + fill
