"""Preprocessing inside of a graph: images of any size in, the input of the model out.

It computes what `Preprocess` does, with tensors alone, so that batch, height, width and the number of channels stay
free in an exported graph. Nothing is rounded to whole grey levels, as a step would magnify the last digits in which
runtimes differ; so pixels differ from those of `Preprocess` by up to one level. Sizes are computed with whole numbers:
every runtime rounds them alike.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.errors import Unsupported

LUMA = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # ITU-R 601, as Pillow rounds it
LEAST_STEPS, MOST_STEPS = 2, 8192  # of a side that keeps its size: torch.export would take 1 for a constant
_CROP_DENOMINATOR = 10_000  # times a side of 65,536 it fits into 32 bits, which is what OpenVINO computes with


class Frame(NamedTuple):
    """A canvas of which preprocessing cuts out the part from `top`, `left` on at the model's size, without resizing."""

    height: int
    width: int
    top: int
    left: int


class Line(NamedTuple):
    """How one axis is resized: output pixel i has its centre at `start + (i + 0.5) * scale`; `low` to `high` count."""

    start: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor


class Pixels(nn.Module):
    """uint8 B H W C at any size -> float32 B c *image_size, normalised; with a step, B c in multiples of it."""

    mean: Tensor
    std: Tensor
    to_channels: Tensor

    def __init__(self, preprocess: Preprocess, *, step: int | None = None) -> None:
        super().__init__()
        check(preprocess)
        self.preprocess, self.step = preprocess, step
        self.image_size, self.channels = preprocess.image_size, preprocess.channels
        mean, std = preprocess.statistics
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)  # c 1 1
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        colour = torch.eye(3) if preprocess.channel_order == "rgb" else torch.eye(3).flip(1)
        wide = colour if self.channels == 3 else torch.tensor(LUMA)[:, None]  # 3 c
        self.register_buffer("to_channels", wide, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Uint8 B H W C -> float32 B c H' W'."""
        pixels = self._coloured(images).permute(0, 3, 1, 2)  # B c H W
        return (self._resized(pixels) / 255 - self.mean) / self.std

    def _coloured(self, images: Tensor) -> Tensor:
        """B H W C -> B H W c, transparency over white; how many channels came is computed, not branched on."""
        channels, pixels = images.shape[3], images.float()
        count = torch.zeros(1, dtype=torch.long) + channels
        has_alpha = count % 2 == 0
        alpha = torch.where(has_alpha, pixels[..., -1:] / 255, torch.ones(1))  # B H W 1
        channel = torch.arange(channels)
        grey = (channel == 0)[:, None].float().expand(-1, self.channels)  # C c: the first channel to all
        colour = self.to_channels[channel.clamp(max=2)] * (channel < 3)[:, None]  # C c
        pixels = pixels @ torch.where(count - has_alpha.long() == 1, grey, colour)
        return pixels * alpha + 255 * (1 - alpha)

    def _resized(self, pixels: Tensor) -> Tensor:
        """B c H W -> B c H' W', 0 to 255."""
        down, across = self._weights(*pixels.shape[2:])  # H' H, W' W
        # Clamped between the passes as well, since a bicubic filter overshoots at edges and `Preprocess` cuts that.
        fitted = (down @ (pixels @ across.mT).clamp(0, 255)).clamp(0, 255)
        if self.step is not None or self.preprocess.resize != "squash" or self.preprocess.like == "hf":
            return fitted
        # Where columns grow and rows shrink, Pillow resizes the rows first.
        other = ((down @ pixels).clamp(0, 255) @ across.mT).clamp(0, 255)
        rows, columns = resized_to(self.preprocess)
        height, width = (torch.zeros(1, dtype=torch.long) + side for side in pixels.shape[2:])
        return torch.where((height > rows) & (width < columns), other, fitted)

    def _weights(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Matrices that resize and cut: H' H and W' W."""
        how = self.preprocess.interpolation
        if self.step is not None:
            return (
                stretch(height, _multiple(height, self.step), how),
                stretch(width, _multiple(width, self.step), how),
            )
        zero = torch.zeros(1, dtype=torch.long)
        lines = self._window if self.preprocess.resize == "window" else self._centred
        down, across = lines(zero + height, zero + width)
        rows, columns = self.image_size
        return weights(down, height, rows, how), weights(across, width, columns, how)

    def _window(self, height: Tensor, width: Tensor) -> tuple[Line, Line]:
        """The largest window of the model's shape, or a share of it, around the centre."""
        (rows, columns), share = self.image_size, crop_fraction(self.preprocess)
        tall = torch.minimum(height, _divided(width * rows, columns).clamp(min=1))
        wide = torch.minimum(width, _divided(height * columns, rows).clamp(min=1))
        if share != 1:
            tall, wide = (_divided(side * share.numerator, share.denominator).clamp(min=1) for side in (tall, wide))
        return _cut(height, tall, rows), _cut(width, wide, columns)

    def _centred(self, height: Tensor, width: Tensor) -> tuple[Line, Line]:
        """The whole image resized, then its centre."""
        tall, wide = self._resized_size(height, width)
        rows, columns = self.image_size
        return self._centre(height, tall, rows), self._centre(width, wide, columns)

    def _resized_size(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = (torch.full((1,), side) for side in resized_to(self.preprocess))
        if self.preprocess.resize == "squash":
            return rows, columns
        upright = width * rows <= height * columns  # the width decides
        if resized_to(self.preprocess)[0] == resized_to(self.preprocess)[1]:  # the longer side is rounded down
            longer = rows * torch.maximum(height, width) // torch.minimum(height, width)
            return torch.where(upright, longer, rows), torch.where(upright, columns, longer)
        tall = torch.where(upright, _divided(height * columns, width).clamp(min=1), rows)
        return tall, torch.where(upright, columns, _divided(width * rows, height).clamp(min=1))

    def _centre(self, side: Tensor, resized: Tensor, wanted: int) -> Line:
        gap = resized - wanted
        first = gap // 2 if self.preprocess.like == "hf" else _divided(gap, 2)
        scale = side.float() / resized.float()
        return Line(first.float() * scale, scale, torch.zeros(1, dtype=torch.long), side)


def check(preprocess: Preprocess) -> None:
    """Unsupported where preprocessing cannot be part of a graph."""
    why = None
    if preprocess.resize == "pad":
        why = 'resize="pad" adds margins; use "crop", "squash" or "window"'
    elif preprocess.interpolation not in ("bicubic", "bilinear"):
        why = f'interpolation="{preprocess.interpolation}" is not available there; use "bicubic" or "bilinear"'
    elif preprocess.crop > 1:
        why = f"crop={preprocess.crop:g} adds margins; it must be 1 or less"
    elif preprocess.channels not in (1, 3):
        why = f"images have 1 or 3 channels, and the model takes {preprocess.channels}"
    if why is not None:
        raise Unsupported(f"this preprocessing cannot be part of an exported graph: {why}")


def frame(preprocess: Preprocess) -> Frame:
    """The canvas for images that have the model's size already: of it a graph cuts out exactly these."""
    for height, width in _canvases(preprocess):
        (across, _, left), (_, down, top) = preprocess.maps(torch.tensor([[height, width]]))[0].tolist()
        if across == down == 1:
            return Frame(height, width, int(top), int(left))
    raise Unsupported(
        f"images of the model's own size cannot be given to a graph with this preprocessing: {preprocess}"
    )


def _canvases(preprocess: Preprocess) -> Iterator[tuple[int, int]]:
    rows, columns = preprocess.image_size
    if preprocess.resize != "window":
        yield resized_to(preprocess)
    elif preprocess.crop == 1:
        yield rows, columns
    else:
        near = range(-2, 3)
        for down, across in sorted(product(near, near), key=lambda pair: abs(pair[0]) + abs(pair[1])):
            yield round(rows / preprocess.crop) + down, round(columns / preprocess.crop) + across


def resized_to(preprocess: Preprocess) -> tuple[int, int]:
    """The size that an image of the model's shape has before its centre is cut out."""
    rows, columns = (math.floor(side / preprocess.crop) for side in preprocess.image_size)
    return rows, columns


def crop_fraction(preprocess: Preprocess) -> Fraction:
    """The share of the window as a fraction of small numbers."""
    return Fraction(preprocess.crop).limit_denominator(_CROP_DENOMINATOR)


def weights(line: Line, size_in: int, size_out: int, interpolation: str = "bicubic") -> Tensor:
    """What each pixel of a line gives to each pixel of the resized one: out in."""
    pixels = torch.arange(size_in)
    centres = line.start + (torch.arange(size_out) + 0.5) * line.scale  # out
    reach = line.scale.clamp(min=1)  # where the image shrinks, the filter widens: that is antialiasing
    distance = ((pixels + 0.5 - centres[:, None]) / reach).abs()  # out in
    values = _cubic(distance) if interpolation == "bicubic" else (1 - distance).clamp(min=0)
    values = values * ((pixels >= line.low) & (pixels < line.high))
    return values / values.sum(dim=1, keepdim=True)


def stretch(side: int, target: int, interpolation: str = "bicubic") -> Tensor:
    """Weights target side that resize a whole side."""
    zero = torch.zeros(1)
    return weights(Line(zero, (zero + side) / target, zero, zero + side), side, target, interpolation)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5: one polynomial up to 1, another up to 2; both vanish where they end."""
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    return (1.5 * near - 2.5) * near * near + 1 + (((2.5 - 0.5 * far) * far - 4) * far + 2)


def _cut(side: Tensor, part: Tensor, wanted: int) -> Line:
    first = (side - part) // 2
    return Line(first.float(), part.float() / wanted, first, first + part)


def _divided(number: Tensor, by: Tensor | int) -> Tensor:
    """The quotient of whole numbers, rounded half to even, as Python rounds."""
    whole, twice = number // by, 2 * (number % by)
    return whole + ((twice > by) | ((twice == by) & (whole % 2 == 1))).long()


def _multiple(side: int, step: int) -> int:
    """The nearest multiple; counted in a tensor, so that a graph knows no more than that it is one."""
    count = (torch.zeros((), dtype=torch.long) + side + step // 2) // step
    steps = cast("int", count.clamp(LEAST_STEPS, MOST_STEPS).item())
    torch._check(steps >= LEAST_STEPS)
    torch._check(steps <= MOST_STEPS)
    return steps * step
