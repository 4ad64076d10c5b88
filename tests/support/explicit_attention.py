"""A plain ViT with its attention written out as a matrix, so that autograd gives its gradient, as in published code."""

from functools import partial
from typing import cast
from unittest.mock import patch

import torch
from torch import Tensor

from vitrail.layers.attention import SoftmaxAttention
from vitrail.models.backbone import Backbone


def explicit_pass(model: Backbone, images: Tensor, target: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The matrices B A N N of all layers, their gradients for the logits of some classes B, and all logits B K."""
    matrices: list[Tensor] = []

    def forward(layer: SoftmaxAttention, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        q, k, v = (
            part.unflatten(2, (layer.num_heads, -1)).transpose(1, 2) for part in layer.qkv(tokens).chunk(3, dim=2)
        )  # B A N d
        matrix = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).softmax(dim=3)
        matrices.append(matrix)
        return cast("Tensor", layer.projection((matrix @ v).transpose(1, 2).flatten(2)))

    layers = [module for module in model.modules() if isinstance(module, SoftmaxAttention)]
    patches = [patch.object(layer, "forward", partial(forward, layer)) for layer in layers]
    try:
        for one in patches:
            one.start()
        logits = model(images)
    finally:
        for one in patches:
            one.stop()
    chosen = logits.gather(1, target[:, None]).sum()
    slopes = torch.autograd.grad(chosen, matrices)
    return [one.detach() for one in matrices], list(slopes), logits.detach()
