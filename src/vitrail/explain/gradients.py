"""Saliency by gradients: of the pixels, along a path, and of the maps of any level."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.errors import ConfigError
from vitrail.explain.method import Method, score
from vitrail.explain.placement import placing, to_pixels
from vitrail.layers.patch import Grid
from vitrail.layers.stage import to_map
from vitrail.models.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Method, kind="gradient"):
    """The largest slope of the logit over a pixel's channels (Simonyan et al. 2013, arXiv:1312.6034)."""

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""
        return pixel_gradients(model, images, target).abs().amax(dim=1)


@dataclass(frozen=True, kw_only=True)
class IntegratedGradientsConfig(Method, kind="integrated_gradients"):
    """The slope along the way from a flat image to this one, times the way (arXiv:1703.01365).

    The flat image is `baseline` everywhere: for images that are normalised, 0 is the data's mean. What the pixels of a
    map add up to is the difference of the logits; the more `steps`, the nearer.
    """

    steps: Count = 32
    baseline: float = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, with signs; the sum is the logit of the image less that of the baseline."""
        return self.attributions(model, images, target).sum(dim=1)

    def attributions(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """What each channel of each pixel adds to the logit: B C H W."""
        # Gauss and Legendre's places: for smooth functions, the error falls faster than any power of the steps.
        places, shares = np.polynomial.legendre.leggauss(self.steps)
        way, total = images - self.baseline, torch.zeros_like(images)
        for place, share in zip(places.tolist(), shares.tolist(), strict=True):
            total += share / 2 * pixel_gradients(model, self.baseline + (place + 1) / 2 * way, target)
        return way * total


@dataclass(frozen=True, kw_only=True)
class GradCAMConfig(Method, kind="grad_cam"):
    """The channels of one level, weighted by their mean gradients, the positive part (arXiv:1610.02391).

    `level` counts as `Features.pyramid` does, -1 for the last. Where the head reads the class token alone, the patches
    of the last level have no gradient; then those that entered the last block are taken, or the last before that have.
    """

    level: int = -1

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""
        entered: list[Entered] = []
        with _entering(model, entered), placing(model) as places:
            features = model.features(images)
            logits = model.classify(features)
        count = len(features.pyramid)
        if not -count <= self.level < count:
            raise ConfigError(f"level {self.level} does not exist; the model has {count}, from 0 to {count - 1}")
        maps = features.pyramid[self.level]
        grid = (maps.shape[2], maps.shape[3])
        # The last level is a picture of the patches, which are what the head reads.
        read = features.patches if self.level % count == count - 1 else maps
        found = [one.values for one in entered if _fits(one, grid, features.prefix.shape[1])] + [read]
        chosen = logits.gather(1, target[:, None]).sum()
        slopes = torch.autograd.grad(chosen, found, allow_unused=True, materialize_grads=True)
        for values, slope in zip(reversed(found), reversed(slopes), strict=True):
            patches, gain = (_on_grid(part.detach(), grid) for part in (values, slope))  # B D h w
            if gain.any():
                cam = (gain.mean(dim=(2, 3), keepdim=True) * patches).sum(dim=1).relu()  # B h w
                exact = cam.to(torch.promote_types(cam.dtype, torch.float32))
                return to_pixels(exact, (images.shape[2], images.shape[3]), places)
        return images.new_zeros(len(images), *images.shape[2:])  # a constant model


def pixel_gradients(model: Backbone, images: Tensor, target: Tensor) -> Tensor:
    """The slope of each image's logit: B C H W and B -> B C H W."""
    images = images.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(score(model, images, target).sum(), images)
    return slope


class Entered(NamedTuple):
    """What entered a block: tokens B P+N D or a map B D h w, and the grid."""

    values: Tensor
    grid: Grid


@contextmanager
def _entering(model: Backbone, entered: list[Entered]) -> Iterator[None]:
    """Collects what enters each block, in order."""

    def keep(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        values = inputs[0]
        entered.append(Entered(values, inputs[1] if values.ndim == 3 else (values.shape[2], values.shape[3])))

    hooks = [block.register_forward_pre_hook(keep) for block in model.blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _fits(one: Entered, grid: Grid, num_prefix: int) -> bool:
    """Whether a block has one token for each patch of a grid, with all prefix tokens or none."""
    count = grid[0] * grid[1]
    return one.grid == grid and (one.values.ndim == 4 or one.values.shape[1] in (count, count + num_prefix))


def _on_grid(found: Tensor, grid: Grid) -> Tensor:
    """A map as it is, tokens B P+N D as B D h w."""
    return found if found.ndim == 4 else to_map(found[:, -grid[0] * grid[1] :], grid)
