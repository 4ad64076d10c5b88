"""Images shown larger or smaller than they are fitted: scale jitter (arXiv:2012.07177), and the tiles of a mosaic."""

import math

import torch
from torch import Tensor

from vitrail.data.augment.resample import Boxes, Size

ZOOM_DRAWS = 3


def pixel_steps(stored: Size, size: Size, aspect: Tensor, resize: str) -> tuple[Tensor, Tensor]:
    """Stored pixels for each pixel of the output, across and down, B each, as evaluation fits an image.

    `aspect` B is how much wider an image is than it is stored.
    """
    down, across = torch.full_like(aspect, stored[0] / size[0]), aspect * (stored[1] / size[1])
    if resize == "squash":
        return across / aspect, down
    step = torch.maximum(across, down) if resize == "pad" else torch.minimum(across, down)
    return step / aspect, step


def zooms(draws: Tensor, limits: tuple[float, float]) -> Tensor:
    """Factors between two limits, even in their logarithm, from uniform numbers B."""
    low, high = map(math.log, limits)
    return (low + (high - low) * draws).exp()


def zoom_boxes(
    draws: Tensor, stored: Size, steps: tuple[Tensor, Tensor], size: Size, limits: tuple[float, float]
) -> Boxes:
    """Boxes that are resized to `size`, from uniform numbers B 3: parts of the image, or more than all of it.

    Boxes lie between pixels and may reach outside; the position is any at which the box holds the image, or is in it.
    """
    zoom = zooms(draws[:, 0], limits)
    across, down = steps[0] / zoom, steps[1] / zoom
    width, height = across * size[1], down * size[0]
    left, top = draws[:, 1] * (stored[1] - width), draws[:, 2] * (stored[0] - height)
    return Boxes(top, left, height, width, fits=torch.ones_like(top, dtype=torch.bool))


def tile_boxes(  # noqa: PLR0917  (the numbers of one tile)
    draws: Tensor, stored: Size, steps: tuple[Tensor, Tensor], size: Size, corners: Tensor, flip: Tensor,
    limits: tuple[float, float],
) -> Boxes:  # fmt: skip
    """The boxes whose part at `corners` B 4 (x1 y1 x2 y2 of the output) shows a random part of the image.

    Of a flipped image, that part must be the same after the flip.
    """
    zoom = zooms(draws[:, 0], limits)
    across, down = steps[0] / zoom, steps[1] / zoom
    wide, tall = (corners[:, 2] - corners[:, 0]) * across, (corners[:, 3] - corners[:, 1]) * down
    left, top = draws[:, 1] * (stored[1] - wide), draws[:, 2] * (stored[0] - tall)  # of what the tile shows
    width, height = across * size[1], down * size[0]
    first = torch.where(flip, left + corners[:, 2] * across - width, left - corners[:, 0] * across)
    return Boxes(top - corners[:, 1] * down, first, height, width, fits=torch.ones_like(top, dtype=torch.bool))
