"""Boxes under affine maps and behind other pixels; a box is x1 y1 x2 y2 in pixels, a whole image 0 0 W H."""

import torch
from torch import Tensor


def map_boxes(boxes: Tensor, maps: Tensor) -> Tensor:
    """The hulls of boxes whose corners go through maps: B M 4, B 2 3 -> B M 4."""
    x, y = boxes[:, :, None, 0::2], boxes[:, :, None, 1::2]  # B M 1 2: left and right, top and bottom
    terms = maps[:, None, :, :, None]  # B 1 2 3 1
    # Each end of a hull is the sum of the ends of its two terms.
    across, down = terms[:, :, :, 0] * x, terms[:, :, :, 1] * y  # B M 2 2
    shift = maps[:, None, :, 2]  # B 1 2
    low, high = across.amin(-1) + down.amin(-1) + shift, across.amax(-1) + down.amax(-1) + shift
    return torch.cat([low, high], dim=2)


def invert(maps: Tensor) -> Tensor:
    """The maps that lead back: B 2 3 -> B 2 3."""
    a, b, c, d = maps[:, 0, 0], maps[:, 0, 1], maps[:, 1, 0], maps[:, 1, 1]
    scale = 1 / (a * d - b * c)
    linear = torch.stack([d, -b, -c, a], dim=1).unflatten(1, (2, 2)) * scale[:, None, None]  # B 2 2
    shift = -(linear * maps[:, None, :, 2]).sum(2)  # B 2; not a matrix product, which TF32 would round
    return torch.cat([linear, shift[:, :, None]], dim=2)


def area(boxes: Tensor) -> Tensor:
    """... 4 -> ...; 0 for a box without width or height."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes ... 4 cut off at the edges of an image of this height and width."""
    height, width = size
    x, y = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], dim=-1)


def trim(boxes: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes B M 4 shrunk to their visible pixels B H W, and the share of each that is visible, B M.

    An edge moves only where whole rows or columns of pixels are hidden. The share counts the pixels whose centres are
    in a box.
    """
    height, width = visible.shape[1:]
    x1, x2 = _pixels(boxes[..., 0], boxes[..., 2], width)
    y1, y2 = _pixels(boxes[..., 1], boxes[..., 3], height)
    # Sums of pixels above (or left of) each edge: a difference of two counts those between.
    down = _sums(visible, 1)  # B H+1 W
    right = _sums(visible, 2).mT  # B W+1 H
    columns = _between(down, y1, y2) * _range(x1, x2, width)  # B M W
    rows = _between(right, x1, x2) * _range(y1, y2, height)  # B M H
    share = columns.sum(2) / ((x2 - x1) * (y2 - y1)).clamp(min=1)
    left, last = _ends(columns > 0)
    top, bottom = _ends(rows > 0)
    ends = torch.stack([left, top, last, bottom], dim=2)
    return torch.where(ends != torch.stack([x1, y1, x2, y2], dim=2), ends.float(), boxes), share


def inside(boxes: Tensor, chosen: Tensor, size: tuple[int, int]) -> Tensor:
    """The pixels whose centres are in any of the chosen boxes: B M 4, B M -> B H W bool."""
    x1, x2 = _pixels(boxes[..., 0], boxes[..., 2], size[1])
    y1, y2 = _pixels(boxes[..., 1], boxes[..., 3], size[0])
    columns, rows = _range(x1, x2, size[1]) & chosen[..., None], _range(y1, y2, size[0])  # B M W, B M H
    return torch.einsum("bmh,bmw->bhw", rows.float(), columns.float()) > 0.5


def _pixels(low: Tensor, high: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first pixel whose centre is in a range, and the one after the last; at least one pixel in the image."""
    first = (low - 0.5).ceil().clamp(0, size - 1).long()
    stop = (high - 0.5).ceil().clamp(1, size).long()
    return first, torch.maximum(stop, first + 1)


def _sums(visible: Tensor, axis: int) -> Tensor:
    counts = visible.int().cumsum(axis)
    return torch.cat([torch.zeros_like(counts.narrow(axis, 0, 1)), counts], dim=axis)


def _between(sums: Tensor, first: Tensor, stop: Tensor) -> Tensor:
    """Pixels from row `first` to `stop` of each box in each column: B R+1 S, B M, B M -> B M S."""
    wide = sums.shape[2]
    low, high = (sums.gather(1, edge[:, :, None].expand(-1, -1, wide)) for edge in (first, stop))
    return high - low


def _range(first: Tensor, stop: Tensor, size: int) -> Tensor:
    """B M, B M -> B M size bool."""
    pixels = torch.arange(size, device=first.device)
    return (pixels >= first[..., None]) & (pixels < stop[..., None])


def _ends(seen: Tensor) -> tuple[Tensor, Tensor]:
    """The first true position of each row and the one after the last: B M S -> B M, B M."""
    marks = seen.byte()
    return marks.argmax(2), seen.shape[2] - marks.flip(2).argmax(2)
