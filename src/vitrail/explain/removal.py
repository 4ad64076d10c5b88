"""Insertion and deletion: how the answer changes as pixels come and go in the order of a map (arXiv:1806.07421)."""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.explain.method import probability
from vitrail.models.backbone import Backbone

Baseline = Literal["mean", "blur"]


def baseline(images: Tensor, kind: Baseline) -> Tensor:
    """An image that says little: its mean colour everywhere, or itself blurred by a tenth of its side; B C H W."""
    if kind not in get_args(Baseline):
        raise ConfigError(f"there is no baseline {kind!r}; {nearest(kind, get_args(Baseline))}")
    if kind == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    channels, height, width = images.shape[1:]
    blurred = images
    for axis, length in ((2, height), (3, width)):
        sigma = length / 10
        reach = min(math.ceil(3 * sigma), length - 1)  # reflection has no more to give
        places = torch.arange(-reach, reach + 1, dtype=torch.float64)
        bell = torch.exp(-((places / sigma) ** 2) / 2)
        bell = (bell / bell.sum()).to(images)
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        padding = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        padded = F.pad(blurred, padding, mode="reflect")
        blurred = F.conv2d(padded, bell.view(shape).expand(channels, -1, -1, -1), groups=channels)
    return blurred


def order(maps: Tensor, *, seed: int = 0) -> Tensor:
    """The rank of each pixel, 0 for the most important: B H W -> B H W; what is equal stands in random order."""
    flat = maps.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(flat.shape[1], generator=generator).to(flat.device)
    places = shuffled[flat[:, shuffled].argsort(dim=1, descending=True, stable=True)]  # B HW, the first to go first
    ranks = torch.arange(flat.shape[1], device=flat.device).expand_as(places)
    return torch.empty_like(places).scatter(1, places, ranks).view(maps.shape)


@torch.no_grad()
def curve(
    model: Backbone,
    images: Tensor,
    maps: Tensor,
    target: Tensor,
    *,
    direction: Literal["deletion", "insertion"],
    kind: Baseline,
    steps: int = 32,
) -> Tensor:
    """The probability of the class as the most important pixels go, or come: B C H W, B H W and B -> B steps+1.

    Deletion begins with the image and ends with the baseline, insertion the other way round; each step takes the same
    number of pixels.
    """
    ranks, flat = order(maps)[:, None], baseline(images, kind)
    start, end = (images, flat) if direction == "deletion" else (flat, images)
    found = []
    for count in range(steps + 1):
        changed = ranks < round(count * ranks[0].numel() / steps)  # B 1 H W
        found.append(probability(model, torch.where(changed, end, start), target))
    return torch.stack(found, dim=1)


def area(curves: Tensor) -> Tensor:
    """The area under each curve, by trapezoids over a way of 1: B S -> B."""
    return torch.trapezoid(curves, dx=1 / (curves.shape[1] - 1), dim=1)
