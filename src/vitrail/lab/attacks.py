"""Adversarial images: the fast gradient sign method (arXiv:1412.6572) and projected gradient descent (1706.06083)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PIECE = 500  # images


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, radius: float) -> Tensor:
    """One step of length `radius` in each pixel, along the sign of the gradient: B C H W from 0 to 1."""
    return (images + radius * _gradient(model, images, labels).sign()).clamp(0, 1)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, radius: float, *, steps: int = 10) -> Tensor:
    """Steps of a quarter of `radius` from a random start, kept within `radius` of each pixel: B C H W from 0 to 1."""
    found = (images + radius * (2 * torch.rand_like(images) - 1)).clamp(0, 1)
    for _ in range(steps):
        found = found + radius / 4 * _gradient(model, found, labels).sign()
        found = torch.minimum(torch.maximum(found, images - radius), images + radius).clamp(0, 1)
    return found


def _gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the loss by the images, B C H W, in parts that fit memory."""
    found = []
    with torch.enable_grad():
        for piece, classes in zip(images.split(_PIECE), labels.split(_PIECE), strict=True):
            inputs = piece.detach().requires_grad_()
            found += torch.autograd.grad(F.cross_entropy(model(inputs), classes, reduction="sum"), inputs)
    return torch.cat(found)
