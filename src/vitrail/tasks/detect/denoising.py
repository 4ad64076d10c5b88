"""True boxes with noise, from which a detector learns without matching (DINO, arXiv:2203.03605)."""

import torch
from torch import Tensor

from vitrail.layers.boxes import to_centres, to_corners
from vitrail.models.heads.detector import Noised
from vitrail.tasks.detect.matching import Truth


def noised(truth: Truth, count: int, num_classes: int, *, label_noise: float, box_noise: float) -> Noised:
    """Groups of noised copies of the true boxes, about `count` copies in all, and as many that are too far off.

    The corners of a copy move by up to half of `box_noise` times its sides, those of one too far off by up to twice
    that; half of the share `label_noise` of labels are drawn anew. Shapes depend on M and `count` alone.
    """
    most = truth.labels.shape[1]
    each = min(most, count)  # copies of a group
    groups = max(count // most, 1)
    order = truth.valid.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :each]  # real ones first
    labels = truth.labels.gather(1, order).repeat(1, 2 * groups)  # B R: group after group, near ones then far ones
    boxes = truth.boxes.gather(1, order[..., None].expand(-1, -1, 4)).repeat(1, 2 * groups, 1)
    valid = (truth.valid & truth.known[:, None]).gather(1, order).repeat(1, 2 * groups)
    near = torch.arange(2 * groups * each, device=labels.device) // each % 2 == 0  # R
    drawn = torch.rand(labels.shape, device=labels.device) < label_noise / 2
    wrong = torch.randint(num_classes, labels.shape, device=labels.device)
    return Noised(
        labels=torch.where(drawn, wrong, labels),
        boxes=_moved(boxes, near, box_noise),
        true_labels=labels,
        true_boxes=boxes,
        positive=near.expand_as(valid),
        valid=valid,
        groups=groups,
    )


def _moved(boxes: Tensor, near: Tensor, noise: float) -> Tensor:
    """Boxes B R 4 whose corners moved at random, those that are not `near` R by more than half of a side."""
    half = boxes[..., 2:].repeat(1, 1, 2) / 2  # B R 4
    sign = torch.randint(2, boxes.shape, device=boxes.device) * 2 - 1
    share = torch.rand(boxes.shape, device=boxes.device) + (~near)[:, None]
    corners = (to_corners(boxes) + sign * share * half * noise).clamp(0, 1)
    first, last = corners[..., :2], corners[..., 2:]  # noise may swap them
    return to_centres(torch.cat([torch.minimum(first, last), torch.maximum(first, last)], dim=-1))
