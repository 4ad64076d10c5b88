"""Propagates importance from the head through the attention layers to the patches of the first.

A vector with one value per token goes through the layers from last to first: r <- r A. This is the row that the head
reads of the product of all matrices, without computing the product; matrices are read in chunks of rows. Between stages
prefix tokens keep their values, and a coarse token divides its value among the finer cells that it was made of. What
mixes tokens outside attention (convolutions, pooling between stages) is treated as local: it moves nothing.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.explain.attention.capture import Captured, Chunk, capture
from vitrail.explain.methods.method import Method, Tried
from vitrail.explain.methods.placement import Strides, record_strides, spread, to_pixels
from vitrail.explain.methods.target import Target
from vitrail.explain.unwrap import is_compiled
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone, Features

Fuse = Callable[[Chunk], Tensor]  # some rows of all heads, B A R P+N each -> B R P+N


class Importance(NamedTuple):
    """How much each token contributes to what the head reads."""

    prefix: Tensor  # B P
    patches: Tensor  # B N
    grid: Grid
    strides: Strides  # between all grids of the model

    def on(self, num_prefix: int, grid: Grid) -> Tensor:
        """The same for the tokens of another layer, B P+N; prefix tokens that are added later get nothing."""
        patches = spread(self.patches, self.grid, grid, self.strides)
        if self.prefix.shape[1] > num_prefix and not self.patches.any():
            # The token with all the importance is not in this layer: all patches alike.
            patches = torch.full_like(patches, 1 / patches.shape[1])
        prefix = F.pad(self.prefix[:, :num_prefix], (0, max(num_prefix - self.prefix.shape[1], 0)))
        return torch.cat([prefix, patches], dim=1)


class AttentionMethod(Method):
    """The common part of methods that read attention matrices."""

    def refusal(self, model: Backbone, tried: Tried | None = None) -> str | None:
        """Why the attention of a model cannot be read, as one sentence; None if it can."""
        layers, tried = str(self.layers()), {} if tried is None else tried
        if layers not in tried:
            tried[layers] = _unreadable(model, self.layers())
        return super().refusal(model) if tried[layers] is None else f"{self.kind}: {tried[layers]}"

    def layers(self) -> list[int] | None:
        """The layers that are read; None: all."""
        return None


def _unreadable(model: Backbone, layers: list[int] | None) -> str | None:
    """Why the attention of some layers cannot be read; None if it can."""
    images = next(model.parameters()).new_zeros(1, model.config.channels, *model.config.image_size)
    try:
        with torch.no_grad(), capture(model, layers=layers, rows=[0]) as captured:
            model(images)
            for layer in captured.attention:
                _ = captured.attention[layer]
    except Unsupported as error:
        return str(error)
    return None


def capture_attention(model: Backbone, images: Tensor, layers: list[int] | None) -> tuple[Captured, Importance]:
    """The attention of a forward pass, and the tokens that the head reads, in equal shares."""
    with torch.no_grad(), capture(model, layers=layers) as captured, record_strides(model) as strides:
        if is_compiled(model):  # only a call of the model itself is captured
            model(images)
        features = model.features(images)
        model.classify(features)
    # Which tokens are read is the same for all images, so the first is enough.
    prefix, patches = (part[:1].detach().requires_grad_() for part in (features.prefix, features.patches))
    finer = tuple(level[:1] for level in features.pyramid[:-1])
    tokens = Features.from_tokens(torch.cat([prefix, patches], dim=1), features.grid, finer=finer)
    output = model.classify(tokens).square().sum()
    gradients = torch.autograd.grad(output, [prefix, patches], allow_unused=True, materialize_grads=True)
    prefix, patches = _equal_shares(*gradients, batch=len(images))
    return captured, Importance(prefix, patches, features.grid, strides)


def capture_gradients(
    model: Backbone, images: Tensor, target: Target, layers: list[int] | None
) -> tuple[Captured, Importance]:
    """The same with the gradients of the explained output, which also decides which tokens are read."""
    images = images.detach().clone().requires_grad_()
    with capture(model, layers=layers, gradients=True) as captured, record_strides(model) as strides:
        features = model.features(images)
        output = target.output(model.classify(features)).sum()
        # With respect to the images too, so that it reaches every layer; gradients of parameters stay unchanged.
        inputs = [features.prefix, features.patches, images]
        prefix, patches, _ = torch.autograd.grad(output, inputs, allow_unused=True, materialize_grads=True)
    prefix, patches = _equal_shares(prefix, patches, batch=len(images))
    return captured, Importance(prefix, patches, features.grid, strides)


def _equal_shares(prefix: Tensor, patches: Tensor, *, batch: int) -> tuple[Tensor, Tensor]:
    """Equal shares, which add up to 1, for tokens whose gradient is not 0: B P D and B N D -> B P and B N.

    For mean pooling, this is the mean of the patches' rows.
    """
    read = [(gradient != 0).any(dim=2).float().expand(batch, -1) for gradient in (prefix, patches)]
    total = (read[0].sum(dim=1) + read[1].sum(dim=1)).clamp(min=1)[:, None]
    return read[0] / total, read[1] / total


def fuse_heads(captured: Captured, layer: int, fuse: Fuse) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time, R, and their attention with all heads fused, B R P+N."""
    for chunk in captured.chunks(layer):
        yield chunk.rows, fuse(chunk)


def receive(
    importance: Tensor, chunks: Iterator[tuple[Tensor, Tensor]], *, normalise: bool = False, residual: bool = True
) -> Tensor:
    """The importance that tokens receive from the tokens that attend to them: r A, B P+N -> B P+N.

    `normalise` divides each row by its sum, after adding the identity if there is a `residual` branch.
    """
    total = torch.zeros_like(importance)
    for rows, matrix in chunks:
        share = importance[:, rows]  # B R
        if normalise:
            share = share / (matrix.sum(dim=2) + residual).clamp(min=1e-30)
            if residual:
                total[:, rows] += share
        total += torch.einsum("br,brn->bn", share, matrix)
    return total


def pass_through(captured: Captured, layer: int, tokens: Tensor) -> Tensor:
    """What passes a layer independently of the gradient, B P+N: by the residual branch, otherwise by attention."""
    if captured.layers[layer].residual:
        return tokens
    return receive(tokens, fuse_heads(captured, layer, lambda chunk: chunk.attention.mean(dim=1)))


def propagate(captured: Captured, importance: Importance, step: Callable[[int, Tensor], Tensor]) -> Importance:
    """From the last layer to the first: `step` takes a layer's index and the importance of its outputs, B P+N."""
    for layer in sorted(captured.layers, reverse=True):
        num_prefix, grid = captured.num_prefix[layer], captured.grid[layer]
        tokens = step(layer, importance.on(num_prefix, grid))
        importance = Importance(tokens[:, :num_prefix], tokens[:, num_prefix:], grid, importance.strides)
    return importance


def on_pixels(importance: Importance, images: Tensor) -> Tensor:
    """The importance of the patches, on pixels: B H W."""
    size = (images.shape[2], images.shape[3])
    return to_pixels(importance.patches.unflatten(1, importance.grid), size, importance.strides)
