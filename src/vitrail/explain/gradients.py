"""Saliency by gradients: of the pixels, along a path, and of the maps of any level."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.explain.method import Method, score
from vitrail.explain.placement import placing, to_pixels
from vitrail.models.backbone import Backbone
from vitrail.tasks.grad_cam import grad_cam


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
        with placing(model) as places:
            maps = grad_cam(model, images, target, level=self.level)
        return to_pixels(maps, (images.shape[2], images.shape[3]), places)


def pixel_gradients(model: Backbone, images: Tensor, target: Tensor) -> Tensor:
    """The slope of each image's logit: B C H W and B -> B C H W."""
    images = images.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(score(model, images, target).sum(), images)
    return slope
