"""Grad-CAM: how much each position of a feature map supports an output (Selvaraju et al. 2016, arXiv:1610.02391)."""

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
    """The channels of one level, weighted by their mean gradients, positive part: B C H W -> B h w.

    `target` B is the index of an output for each image; None: the largest. `level` is an index of `Features.pyramid`,
    -1 for the last. If the head reads only the class token, the patches of the last level have no gradient; then the
    inputs of the last block that has one are used. For a constant model all values are 0.
    """
    with torch.enable_grad(), _entering(model) as entered:
        features = model.features(images.detach().clone().requires_grad_())
        outputs = model.classify(features)
        explained = (outputs.amax(dim=1) if target is None else outputs.gather(1, target[:, None])).sum()
    count = len(features.pyramid)
    if not -count <= level < count:
        raise ConfigError(f"level {level} does not exist; the model has {count}, from 0 to {count - 1}")
    maps = features.pyramid[level]
    grid = (maps.shape[2], maps.shape[3])
    # The last level is a view of the patches, which the head reads.
    last = features.patches if level % count == count - 1 else maps
    candidates = [one.values for one in entered if _fits(one, grid, features.prefix.shape[1])] + [last]
    gradients = torch.autograd.grad(explained, candidates, allow_unused=True, materialize_grads=True)
    exact = torch.promote_types(maps.dtype, torch.float32)
    for values, gradient in zip(reversed(candidates), reversed(gradients), strict=True):
        patches, slopes = (_on_grid(part.detach(), grid) for part in (values, gradient))  # B D h w
        if slopes.any():
            return (slopes.mean(dim=(2, 3), keepdim=True) * patches).sum(dim=1).relu().to(exact)
    return torch.zeros(len(images), *grid, dtype=exact, device=images.device)


class _Entered(NamedTuple):
    """The input of a block: tokens B P+N D or a map B D h w, and the grid."""

    values: Tensor
    grid: Grid


@contextmanager
def _entering(model: Backbone) -> Iterator[list[_Entered]]:
    """A list that fills with the inputs of all blocks, in order."""
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
    """Whether the input has one token for each patch of a grid, with all prefix tokens or none."""
    count = grid[0] * grid[1]
    return one.grid == grid and (one.values.ndim == 4 or one.values.shape[1] in (count, count + num_prefix))


def _on_grid(values: Tensor, grid: Grid) -> Tensor:
    """A map as it is, tokens B P+N D as B D h w."""
    return values if values.ndim == 4 else to_map(values[:, -grid[0] * grid[1] :], grid)
