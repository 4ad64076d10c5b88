"""Carries importance from the head through the attention layers down to the patches of the first.

A vector of one number a token goes through the layers from last to first: r <- r A, which is the row that the head
reads of the product of all matrices, without the product; matrices are read in chunks of rows. Between stages the
prefix tokens keep theirs where they go along, and a coarse token shares among the finer cells that it was made of.
What mixes tokens beside attention (convolutions, pooling between stages) is taken as local: it moves nothing.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.explain.capture import Chunk, Seen, capture
from vitrail.explain.method import Method
from vitrail.explain.placement import Places, placing, spread, to_pixels
from vitrail.layers.patch import Grid
from vitrail.models.backbone import Backbone, Features

Fuse = Callable[[Chunk], Tensor]  # some rows of all heads, B A R P+N each -> B R P+N


class Held(NamedTuple):
    """How much each token holds of what the head reads."""

    prefix: Tensor  # B P
    patches: Tensor  # B N
    grid: Grid
    places: Places  # of all grids, as the model ran

    def on(self, num_prefix: int, grid: Grid) -> Tensor:
        """The same for the tokens of another layer, B P+N: prefix tokens that join later have nothing to hand on."""
        patches = spread(self.patches, self.grid, grid, self.places)
        if self.prefix.shape[1] > num_prefix and not self.patches.any():
            patches = torch.full_like(patches, 1 / patches.shape[1])  # the token that held all is not there: all alike
        prefix = F.pad(self.prefix[:, :num_prefix], (0, max(num_prefix - self.prefix.shape[1], 0)))
        return torch.cat([prefix, patches], dim=1)


class AttentionMethod(Method):
    """What the methods have in common that read attention matrices."""

    def refusal(self, model: Backbone) -> str | None:
        """Why the attention of a model cannot be read, in one sentence; None where it can."""
        try:
            images = next(model.parameters()).new_zeros(1, model.config.channels, *model.config.image_size)
            with torch.no_grad(), capture(model, layers=self.read(), rows=[0]) as seen:
                model(images)
                for layer in seen.attention:
                    _ = seen.attention[layer]
        except Unsupported as error:
            return f"{self.kind}: {error}"
        return super().refusal(model)

    def read(self) -> list[int] | None:
        """The layers that are read; None: all."""
        return None


def watched(model: Backbone, images: Tensor, layers: list[int] | None) -> tuple[Seen, Held]:
    """The attention of a forward pass, and the tokens that the head reads, in equal parts."""
    with torch.no_grad():
        with capture(model, layers=layers) as seen, placing(model) as places:
            model(images)
        features = model.features(images[:1])  # which tokens are read is the same for all
    prefix, patches = features.prefix.detach().requires_grad_(), features.patches.detach().requires_grad_()
    read = Features.from_tokens(torch.cat([prefix, patches], dim=1), features.grid, finer=features.pyramid[:-1])
    answer = model.classify(read).square().sum()
    slopes = torch.autograd.grad(answer, [prefix, patches], allow_unused=True, materialize_grads=True)
    prefix, patches = _equal_parts(*slopes, batch=len(images))
    return seen, Held(prefix, patches, features.grid, places)


def differentiated(model: Backbone, images: Tensor, target: Tensor, layers: list[int] | None) -> tuple[Seen, Held]:
    """The same with the gradients of a class, B, whose logit decides which tokens are read."""
    images = images.detach().clone().requires_grad_()
    with capture(model, layers=layers, gradients=True) as seen, placing(model) as places:
        features = model.features(images)
        logits = model.classify(features).gather(1, target[:, None]).sum()
        # To the images, so that it passes every layer; parameters keep the gradients that they had.
        inputs = [features.prefix, features.patches, images]
        prefix, patches, _ = torch.autograd.grad(logits, inputs, allow_unused=True, materialize_grads=True)
    prefix, patches = _equal_parts(prefix, patches, batch=len(images))
    return seen, Held(prefix, patches, features.grid, places)


def _equal_parts(prefix: Tensor, patches: Tensor, *, batch: int) -> tuple[Tensor, Tensor]:
    """The tokens that have a slope at all, of B P D and B N D, in parts that add up to 1: B P and B N.

    Where pooling takes a mean, its row is the mean of the patches' rows.
    """
    read = [(slope != 0).any(dim=2).float().expand(batch, -1) for slope in (prefix, patches)]
    total = (read[0].sum(dim=1) + read[1].sum(dim=1)).clamp(min=1)[:, None]
    return read[0] / total, read[1] / total


def fused(seen: Seen, layer: int, fuse: Fuse) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time and their attention B R P+N, all heads in one."""
    for chunk in seen.chunks(layer):
        yield chunk.rows, fuse(chunk)


def received(
    held: Tensor, chunks: Iterator[tuple[Tensor, Tensor]], *, normalise: bool = False, residual: bool = True
) -> Tensor:
    """What tokens get of what those that look at them hold: r A, B P+N -> B P+N.

    `normalise` brings each row's sum to 1, and adds the token itself before, where there is a `residual` branch.
    """
    total = torch.zeros_like(held)
    for rows, matrix in chunks:
        share = held[:, rows]  # B R
        if normalise:
            share = share / (matrix.sum(dim=2) + residual).clamp(min=1e-30)
            if residual:
                total[:, rows] += share
        total += torch.einsum("br,brn->bn", share, matrix)
    return total


def kept(seen: Seen, layer: int, tokens: Tensor) -> Tensor:
    """What passes a layer whatever the gradient says, B P+N: by the residual branch, or else by attention alone."""
    if seen.layers[layer].residual:
        return tokens
    return received(tokens, fused(seen, layer, lambda chunk: chunk.attention.mean(dim=1)))


def carried(seen: Seen, held: Held, step: Callable[[int, Tensor], Tensor]) -> Held:
    """From the last layer to the first: `step` takes a layer's number and what its outputs hold, B P+N."""
    for layer in sorted(seen.layers, reverse=True):
        num_prefix, grid = seen.num_prefix[layer], seen.grid[layer]
        tokens = step(layer, held.on(num_prefix, grid))
        held = Held(tokens[:, :num_prefix], tokens[:, num_prefix:], grid, held.places)
    return held


def on_pixels(held: Held, images: Tensor) -> Tensor:
    """What the patches hold, on pixels: B H W."""
    return to_pixels(held.patches.unflatten(1, held.grid), (images.shape[2], images.shape[3]), held.places)
