"""Boxes as tensors ... 4: centre and size (x, y, width, height) or corners (left, top, right, bottom)."""

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    """Centre and size -> corners: ... 4 -> ... 4."""
    centre, size = boxes.chunk(2, dim=-1)
    half = size / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def to_centres(boxes: Tensor) -> Tensor:
    """Corners -> centre and size: ... 4 -> ... 4."""
    first, last = boxes.chunk(2, dim=-1)
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def area(boxes: Tensor) -> Tensor:
    """Corners ... 4 -> ...; a box without width or height has area 0."""
    first, last = boxes.chunk(2, dim=-1)
    return _between(first, last)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of corners ... 4 and ... 4, broadcast: ...; 0 for two empty boxes."""
    return overlaps(first, second)[0]


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU less the empty share of the smallest box around both, -1 to 1: ... 4, ... 4 -> ... (arXiv:1902.09630)."""
    return overlaps(first, second)[1]


def overlaps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU of corners ... 4 and ... 4, broadcast: ... each."""
    (low, high), (other_low, other_high) = first.chunk(2, dim=-1), second.chunk(2, dim=-1)
    both = _between(torch.maximum(low, other_low), torch.minimum(high, other_high))
    union = _between(low, high) + _between(other_low, other_high) - both
    whole = _between(torch.minimum(low, other_low), torch.maximum(high, other_high))
    share = both / union.clamp(min=torch.finfo(union.dtype).tiny)
    return share, share - (whole - union) / whole.clamp(min=torch.finfo(whole.dtype).tiny)


def _between(first: Tensor, last: Tensor) -> Tensor:
    """The area between two corners: ... 2, ... 2 -> ..."""
    width, height = (last - first).clamp(min=0).unbind(dim=-1)  # the gradient of prod would be ten operators
    return width * height


def inverse_sigmoid(values: Tensor, eps: float = 1e-5) -> Tensor:
    """The logit of numbers from 0 to 1, which are kept `eps` away from both ends: ... -> ..."""
    values = values.clamp(0, 1)
    return (values.clamp(min=eps) / (1 - values).clamp(min=eps)).log()


def precise(values: Tensor) -> Tensor:
    """At least float32: half precision would move a box by whole pixels."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
