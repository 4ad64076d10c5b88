"""Insertion and deletion: scores as pixels are added or removed in the order of a map (arXiv:1806.07421)."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone

Baseline = Literal["mean", "blur"]
Direction = Literal["deletion", "insertion"]
MAX_BATCH = 64  # images in one forward pass


class Ends(NamedTuple):
    """The scores of images and of their baselines, where all curves start or end: B each."""

    image: Tensor
    baseline: Tensor


def baseline(images: Tensor, kind: Baseline) -> Tensor:
    """Images without details: their mean colour, or themselves blurred by a tenth of their side; B C H W."""
    if kind not in get_args(Baseline):
        raise ConfigError(f"unknown baseline {kind!r}; {nearest(kind, get_args(Baseline))}")
    if kind == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    channels, height, width = images.shape[1:]
    blurred = images
    for axis, length in ((2, height), (3, width)):
        sigma = length / 10
        reach = min(math.ceil(3 * sigma), length - 1)  # the most that reflection allows
        offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
        kernel = torch.exp(-((offsets / sigma) ** 2) / 2)
        kernel = (kernel / kernel.sum()).to(images)
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        padding = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        padded = F.pad(blurred, padding, mode="reflect")
        blurred = F.conv2d(padded, kernel.view(shape).expand(channels, -1, -1, -1), groups=channels)
    return blurred


def ranks(maps: Tensor, *, seed: int = 0) -> Tensor:
    """The rank of each pixel, 0 for the most important: B H W -> B H W; equal values are in random order."""
    flat = maps.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(flat.shape[1], generator=generator).to(flat.device)
    order = shuffled[flat[:, shuffled].argsort(dim=1, descending=True, stable=True)]  # B HW, most important first
    positions = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, positions).view(maps.shape)


@torch.no_grad()
def scores(model: Backbone, images: Tensor, target: Target) -> Tensor:
    """The scores of the explained outputs: B C H W -> B."""
    parts = zip(images.split(MAX_BATCH), target.split(MAX_BATCH), strict=True)
    return torch.cat([which.score(model(some)) for some, which in parts])


@torch.no_grad()
def curve(
    model: Backbone,
    images: Tensor,
    removed: Tensor,
    maps: Tensor,
    target: Target,
    *,
    direction: Direction,
    steps: int = 32,
    ends: Ends | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """The score as the most important pixels are removed or added: B C H W, twice, and B H W -> B steps+1.

    Deletion goes from `images` to `removed`, their baselines; insertion from `removed` to `images`. Each step changes
    the same number of pixels. `ends`, if known, saves two passes; `on_step` is called after each other pass.
    """
    order = ranks(maps)[:, None]  # B 1 H W
    ends = ends or Ends(scores(model, images, target), scores(model, removed, target))
    points = [ends.image if direction == "deletion" else ends.baseline]
    start, end = (images, removed) if direction == "deletion" else (removed, images)
    for step in range(1, steps):
        changed = order < round(step * order[0].numel() / steps)
        points.append(scores(model, torch.where(changed, end, start), target))
        on_step()
    points.append(ends.baseline if direction == "deletion" else ends.image)
    return torch.stack(points, dim=1)


def area(curves: Tensor) -> Tensor:
    """The area under each curve over a unit interval, by the trapezoidal rule: B S -> B."""
    return torch.trapezoid(curves, dx=1 / (curves.shape[1] - 1), dim=1)
