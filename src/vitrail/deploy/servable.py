"""A model with its preprocessing inside: bytes of pixels in, logits and probabilities out, as one graph.

What happens to a picture is what the training side does (`data/cache.py: fit`, `data/augment.py: Prepare`): grey
becomes colour or colour grey, transparency is laid over white, the largest window of the model's shape around the
centre is resized by antialiased bicubic, and normalised. It is written in tensors alone, so that batch, height, width
and the number of channels stay free in a graph that is exported. Nothing is rounded, as a step would magnify the last
digits in which backends differ; `fit` rounds to whole levels, so a resized picture may differ from it by a level.

With a `step` nothing is cut off: pictures keep their size, resized to the nearest whole steps, and the model follows.
"""

from typing import cast

import torch
from torch import Tensor, nn

from vitrail.data.resample import axis_weights
from vitrail.models.backbone import Backbone

LUMA = (19595 / 65536, 38470 / 65536, 7471 / 65536)  # ITU-R 601, as Pillow rounds it
LEAST_STEPS, MOST_STEPS = 2, 8192  # of a side, where pictures keep their size: a graph takes one alone for a constant


class Pixels(nn.Module):
    """uint8 B H W C at any size -> float32 B c *image_size, normalised; with a step, B c of whole steps."""

    mean: Tensor
    std: Tensor
    to_channels: Tensor

    def __init__(self, *, image_size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.image_size, self.channels = image_size, len(mean)
        self.step: int | None = None
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)  # c 1 1
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        wide = torch.eye(3) if self.channels == 3 else torch.tensor(LUMA)[:, None]  # 3 c
        self.register_buffer("to_channels", wide, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Uint8 B H W C -> float32 B c H' W'."""
        pixels = self._coloured(images).permute(0, 3, 1, 2)  # B c H W
        fitted = self._fitted(pixels) if self.step is None else self._stepped(pixels, self.step)
        return (fitted / 255 - self.mean) / self.std

    def _coloured(self, images: Tensor) -> Tensor:
        """B H W C -> B H W c, without transparency; how many channels came is computed, not branched on."""
        channels, pixels = images.shape[3], images.float()
        count = torch.zeros(1, dtype=torch.long) + channels
        has_alpha = count % 2 == 0
        alpha = torch.where(has_alpha, pixels[..., -1:] / 255, torch.ones(1))  # B H W 1
        place = torch.arange(channels)
        grey = (place == 0)[:, None].float().expand(-1, self.channels)  # C c: the first channel to all
        colour = self.to_channels[place.clamp(max=2)] * (place < 3)[:, None]  # C c
        pixels = pixels @ torch.where(count - has_alpha.long() == 1, grey, colour)
        return pixels * alpha + 255 * (1 - alpha)

    def _fitted(self, pixels: Tensor) -> Tensor:
        """The window around the centre, resized: B c H W -> B c *image_size, 0 to 255."""
        height, width = pixels.shape[2:]
        zero, straight = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
        high, wide = zero + height, zero + width
        rows = torch.minimum(high, (wide * self.image_size[0] / self.image_size[1]).round().clamp(min=1))
        columns = torch.minimum(wide, (high * self.image_size[1] / self.image_size[0]).round().clamp(min=1))
        top, left = ((high - rows) / 2).floor(), ((wide - columns) / 2).floor()
        down = axis_weights(top, rows, height, self.image_size[0], mirror=straight)[0]  # H' H
        across = axis_weights(left, columns, width, self.image_size[1], mirror=straight)[0]  # W' W
        return (down @ (pixels @ across.mT)).clamp(0, 255)  # B c H' W'

    def _stepped(self, pixels: Tensor, step: int) -> Tensor:
        """All of the picture in whole steps: B c H W -> B c H' W', 0 to 255."""
        down, across = (stretch(side, _whole(side, step)) for side in pixels.shape[2:])
        return (down @ (pixels @ across.mT)).clamp(0, 255)  # B c H' W'


def stretch(side: int, target: int) -> Tensor:
    """Weights target side that resize a whole side."""
    zero, straight = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    return axis_weights(zero, zero + side, side, target, mirror=straight)[0]


def _whole(side: int, step: int) -> int:
    """The nearest whole steps; counted in a tensor, so that a graph knows a multiple of the step and no more."""
    count = (torch.zeros((), dtype=torch.long) + side + step // 2) // step
    whole = cast("int", count.clamp(LEAST_STEPS, MOST_STEPS).item())
    torch._check(whole >= LEAST_STEPS)
    torch._check(whole <= MOST_STEPS)
    return whole * step


class Servable(nn.Module):
    """uint8 B H W C at any size -> logits B K and probabilities B K."""

    def __init__(self, model: Backbone, pixels: Pixels, *, multi_label: bool) -> None:
        super().__init__()
        self.model, self.pixels, self.multi_label = model, pixels, multi_label

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Uint8 B H W C -> B K, B K."""
        logits = self.model(self.pixels(images)).float()
        return logits, logits.sigmoid() if self.multi_label else logits.softmax(dim=1)
