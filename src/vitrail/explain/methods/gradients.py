"""Saliency by gradients: of the pixels, along a path, and of the feature maps of any level."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Count
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.placement import record_strides, to_pixels
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone
from vitrail.tasks.grad_cam import grad_cam


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Method, kind="gradient"):
    """The largest absolute gradient over a pixel's channels (Simonyan et al. 2013, arXiv:1312.6034)."""

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""
        return pixel_gradients(model, images, target).abs().amax(dim=1)


@dataclass(frozen=True, kw_only=True)
class IntegratedGradientsConfig(Method, kind="integrated_gradients"):
    """The gradient integrated from a constant image to this one, times their difference (arXiv:1703.01365).

    The constant image is `baseline` everywhere: for normalised images, 0 is the mean of the data. The pixels of a map
    add up to the difference of the two outputs; more `steps` make this more exact.
    """

    steps: Count = 32
    baseline: float = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, with signs; the sum is the output for the image minus that for the baseline."""
        return self.attributions(model, images, target).sum(dim=1)

    def attributions(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """What each channel of each pixel adds to the output: B C H W."""
        # Gauss-Legendre quadrature: for smooth functions, the error falls faster than any power of the steps.
        nodes, weights = np.polynomial.legendre.leggauss(self.steps)
        path, total = images - self.baseline, torch.zeros_like(images)
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total += weight / 2 * pixel_gradients(model, self.baseline + (node + 1) / 2 * path, target)
        return path * total


@dataclass(frozen=True, kw_only=True)
class GradCAMConfig(Method, kind="grad_cam"):
    """The channels of one level, weighted by their mean gradients, positive part (arXiv:1610.02391).

    `level` is an index of `Features.pyramid`, -1 for the last. If the head reads only the class token, the patches of
    the last level have no gradient; then the inputs of the last block that has one are used.
    """

    level: int = -1

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""
        with record_strides(model) as strides:
            maps = grad_cam(model, images, target.indices, level=self.level)
        return to_pixels(maps, (images.shape[2], images.shape[3]), strides)


def pixel_gradients(model: Backbone, images: Tensor, target: Target) -> Tensor:
    """The gradient of each image's explained output: B C H W -> B C H W."""
    images = images.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target.output(model(images)).sum(), images)
    return gradient
