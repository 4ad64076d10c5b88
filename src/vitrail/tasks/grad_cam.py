"""Grad-CAM: how much each place of a map speaks for a class (Selvaraju et al. 2016, arXiv:1610.02391)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map
from vitrail.models.backbone import Backbone


def grad_cam(model: Backbone, images: Tensor, target: Tensor | None = None, *, level: int = -1) -> Tensor:
    """The channels of one level, weighted by their mean gradients, the positive part: B C H W -> B h w.

    `target` B names a class for each image, the likeliest where it is None. `level` counts as `Features.pyramid` does,
    -1 for the last. Where the head reads the class token alone, the patches of the last level have no gradient; then
    those that entered the last block are taken, or the last before that have. Of a constant model it is zeros.
    """
    with torch.enable_grad(), _entering(model) as entered:
        features = model.features(images.detach().clone().requires_grad_())
        logits = model.classify(features)
        chosen = (logits.amax(dim=1) if target is None else logits.gather(1, target[:, None])).sum()
    count = len(features.pyramid)
    if not -count <= level < count:
        raise ConfigError(f"level {level} does not exist; the model has {count}, from 0 to {count - 1}")
    maps = features.pyramid[level]
    grid = (maps.shape[2], maps.shape[3])
    # The last level is a picture of the patches, which are what the head reads.
    read = features.patches if level % count == count - 1 else maps
    found = [one.values for one in entered if _fits(one, grid, features.prefix.shape[1])] + [read]
    slopes = torch.autograd.grad(chosen, found, allow_unused=True, materialize_grads=True)
    exact = torch.promote_types(maps.dtype, torch.float32)
    for values, slope in zip(reversed(found), reversed(slopes), strict=True):
        patches, gain = (_on_grid(part.detach(), grid) for part in (values, slope))  # B D h w
        if gain.any():
            return (gain.mean(dim=(2, 3), keepdim=True) * patches).sum(dim=1).relu().to(exact)
    return torch.zeros(len(images), *grid, dtype=exact, device=images.device)


class _Entered(NamedTuple):
    """What entered a block: tokens B P+N D or a map B D h w, and the grid."""

    values: Tensor
    grid: Grid


@contextmanager
def _entering(model: Backbone) -> Iterator[list[_Entered]]:
    """A list that fills with what enters each block, in order."""
    entered: list[_Entered] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        values = inputs[0]
        entered.append(_Entered(values, inputs[1] if values.ndim == 3 else (values.shape[2], values.shape[3])))

    hooks = [block.register_forward_pre_hook(keep) for block in model.blocks]
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


def _fits(one: _Entered, grid: Grid, num_prefix: int) -> bool:
    """Whether a block has one token for each patch of a grid, with all prefix tokens or none."""
    count = grid[0] * grid[1]
    return one.grid == grid and (one.values.ndim == 4 or one.values.shape[1] in (count, count + num_prefix))


def _on_grid(found: Tensor, grid: Grid) -> Tensor:
    """A map as it is, tokens B P+N D as B D h w."""
    return found if found.ndim == 4 else to_map(found[:, -grid[0] * grid[1] :], grid)
