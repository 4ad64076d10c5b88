"""Boxes as tensors ... 4: centre and size (x, y, width, height) or corners (left, top, right, bottom)."""

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    """Centre and size -> corners: ... 4 -> ... 4."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def to_centres(boxes: Tensor) -> Tensor:
    """Corners -> centre and size: ... 4 -> ... 4."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(first + last) / 2, last - first], dim=-1)


def area(boxes: Tensor) -> Tensor:
    """Corners ... 4 -> ...; a box without width or height has area 0."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of corners ... 4 and ... 4, broadcast: ...; 0 for two empty boxes."""
    return _overlap(first, second)[0]


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU less the empty share of the smallest box around both, -1 to 1: ... 4, ... 4 -> ... (arXiv:1902.09630)."""
    share, union = _overlap(first, second)
    around = torch.cat(
        [torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])], dim=-1
    )
    whole = area(around)
    return share - (whole - union) / whole.clamp(min=torch.finfo(whole.dtype).tiny)


def _overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and area of the union."""
    shared = torch.cat(
        [torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])], dim=-1
    )
    both = area(shared)
    union = area(first) + area(second) - both
    return both / union.clamp(min=torch.finfo(union.dtype).tiny), union


def inverse_sigmoid(values: Tensor, eps: float = 1e-5) -> Tensor:
    """The logit of numbers from 0 to 1, which are kept `eps` away from both ends: ... -> ..."""
    values = values.clamp(0, 1)
    return (values.clamp(min=eps) / (1 - values).clamp(min=eps)).log()


def precise(values: Tensor) -> Tensor:
    """At least float32: half precision would move a box by whole pixels."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
