"""Where the decoder of a detector looks for one box: the attention of its query to the image."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.layers.attention.deformable_multiscale import MultiScaleDeformableAttention
from vitrail.layers.attention.positioned import PositionedAttention
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Features
from vitrail.models.heads import Detector


@torch.no_grad()
def cross_attention(head: Detector, features: Features, boxes: Tensor, count: int, size: tuple[int, int]) -> Tensor:
    """The attention of the queries of some boxes, mean over heads and decoder layers: maps B *size that sum to 1.

    `boxes` B are positions among the `count` best boxes of each image. A query of a deformable decoder samples points
    of every level; the weight of a point is spread over the pixels of the level around it.
    """
    with _recorded(head) as calls:
        found = head(features).found
    rows = head.best(found.logits[-1], count)[0].gather(1, boxes[:, None])  # B 1
    maps = torch.stack([_seen(module, arguments, features, rows, size) for module, arguments in calls]).mean(dim=0)
    return maps / maps.sum(dim=(1, 2), keepdim=True).clamp(min=1e-12)


@contextmanager
def _recorded(head: nn.Module) -> Iterator[list[tuple[nn.Module, tuple[Any, ...]]]]:
    """The calls of the decoder layers' attention to the image: each module with its arguments."""
    calls: list[tuple[nn.Module, tuple[Any, ...]]] = []
    modules = [part for name, part in head.named_modules() if name.endswith(".cross")]
    handles = [part.register_forward_pre_hook(lambda module, given: calls.append((module, given))) for part in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _seen(
    module: nn.Module, arguments: tuple[Any, ...], features: Features, rows: Tensor, size: tuple[int, int]
) -> Tensor:
    """The weights of one layer for one query of each image, as maps B *size."""
    assert isinstance(module, MultiScaleDeformableAttention | PositionedAttention)  # noqa: S101  (those of decoders)
    weights: Tensor = module.weights(*arguments).float().mean(dim=1)  # B Q S
    own = weights.gather(1, rows[..., None].expand(-1, -1, weights.shape[2]))[:, 0]  # B S
    last = features.pyramid[-1]
    deformable = isinstance(module, MultiScaleDeformableAttention)
    grids: Sequence[Grid] = arguments[3] if deformable else [(last.shape[2], last.shape[3])]
    levels = own.split([height * width for height, width in grids], dim=1)
    maps = [_spread(level, grid, size) for level, grid in zip(levels, grids, strict=True)]
    return torch.stack(maps).sum(dim=0)


def _spread(weights: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """Weights of the cells of a grid as a map with the same sum: B N -> B *size."""
    cells = weights.unflatten(1, grid)[:, None]  # B 1 h w
    grown = F.interpolate(cells, size=size, mode="bilinear", align_corners=False)[:, 0]
    return grown * (weights.sum(dim=1) / grown.sum(dim=(1, 2)).clamp(min=1e-12))[:, None, None]
