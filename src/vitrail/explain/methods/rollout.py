"""Attention itself as saliency: of one layer, or rolled out over all layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from torch import Tensor

from vitrail.config import Range
from vitrail.explain.attention.capture import Captured, Chunk
from vitrail.explain.indices import resolve_indices
from vitrail.explain.methods.propagation import (
    AttentionMethod,
    capture_attention,
    capture_gradients,
    fuse_heads,
    on_pixels,
    propagate,
    receive,
)
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone

Fusion = Literal["mean", "max", "min"]
Share = Annotated[float, Range(0.0, 0.999)]


@dataclass(frozen=True, kw_only=True)
class AttentionMapConfig(AttentionMethod, kind="attention"):
    """What the class token attends to in one layer, or the mean over all patches if the head reads patches.

    `layer` is an index of the attention layers, -1 for the last; heads are fused by `fusion`, unless one `head` is
    chosen.
    """

    targeted = False
    layer: int = -1
    fusion: Fusion = "mean"
    head: int | None = None

    def layers(self) -> list[int]:
        """The layer that is read."""
        return [self.layer]

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            return receive(tokens, fuse_heads(captured, layer, lambda chunk: self._fused(chunk.attention)))

        captured, importance = capture_attention(model, images, self.layers())
        return on_pixels(propagate(captured, importance, step), images)

    def _fused(self, attention: Tensor) -> Tensor:
        """B A R P+N -> B R P+N."""
        if self.head is None:
            return fused(attention, self.fusion)
        (head,) = resolve_indices([self.head], attention.shape[1], "head", "heads in this layer")
        return attention[:, head]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(AttentionMethod, kind="rollout"):
    """The product of all layers' attention, each averaged with the identity (arXiv:2005.00928).

    Heads are fused by `fusion`; the share `discard` of the smallest entries of each matrix is set to 0, except the
    first token's attention to itself, as in vit-explain; then rows are normalised to a sum of 1.
    """

    targeted = False
    fusion: Fusion = "mean"
    discard: Share = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            chunks = fuse_heads(captured, layer, lambda chunk: fused(chunk.attention, self.fusion))
            return roll(captured, layer, tokens, without_smallest(chunks, self.discard))

        captured, importance = capture_attention(model, images, None)
        return on_pixels(propagate(captured, importance, step), images)


@dataclass(frozen=True, kw_only=True)
class GradientRolloutConfig(AttentionMethod, kind="gradient_rollout"):
    """Rollout of attention times its gradient, the positive part of the mean over heads (as in vit-explain).

    For layers without a residual branch, attention itself is added instead of the identity. `discard` is as in rollout.
    """

    discard: Share = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            no_residual = not captured.layers[layer].residual
            chunks = fuse_heads(
                captured,
                layer,
                lambda chunk: times_gradient(chunk).mean(dim=1).relu() + no_residual * chunk.attention.mean(dim=1),
            )
            return roll(captured, layer, tokens, without_smallest(chunks, self.discard))

        captured, importance = capture_gradients(model, images, target, None)
        return on_pixels(propagate(captured, importance, step), images)


def roll(captured: Captured, layer: int, tokens: Tensor, chunks: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """One layer of a rollout: B P+N -> B P+N."""
    return receive(tokens, chunks, normalise=True, residual=captured.layers[layer].residual)


def fused(attention: Tensor, fusion: Fusion) -> Tensor:
    """All heads as one: B A R P+N -> B R P+N."""
    if fusion == "mean":
        return attention.mean(dim=1)
    return attention.amax(dim=1) if fusion == "max" else attention.amin(dim=1)


def times_gradient(chunk: Chunk) -> Tensor:
    """Attention times its gradient: B A R P+N."""
    return chunk.attention * cast("Tensor", chunk.gradient)


def without_smallest(chunks: Iterator[tuple[Tensor, Tensor]], share: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows with the smallest entries of the whole matrix B N N set to 0; the matrix is gathered for that."""
    if share == 0.0:
        yield from chunks
        return
    rows, parts = zip(*chunks, strict=True)
    matrix = torch.cat(parts, dim=1)
    flat = matrix.flatten(1)
    first = flat[:, 0].clone()
    smallest = flat.topk(int(flat.shape[1] * share), dim=1, largest=False).indices
    flat = flat.scatter(1, smallest, 0.0)
    flat[:, 0] = first
    yield torch.cat(rows), flat.view_as(matrix)
