"""Attention itself as saliency: of one layer, or rolled out over all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from torch import Tensor

from vitrail.config import Range
from vitrail.explain.capture import Chunk, Seen
from vitrail.explain.propagation import AttentionMethod, carried, differentiated, fused, on_pixels, received, watched
from vitrail.models.backbone import Backbone

Fusion = Literal["mean", "max", "min"]
Share = Annotated[float, Range(0.0, 0.999)]


@dataclass(frozen=True, kw_only=True)
class AttentionMapConfig(AttentionMethod, kind="attention"):
    """What the class token attends to in one layer, or all patches in the mean where the head reads those.

    `layer` counts attention layers, -1 for the last; `fusion` is that of the heads.
    """

    targeted = False
    layer: int = -1
    fusion: Fusion = "mean"

    def read(self) -> list[int]:
        """The one layer."""
        return [self.layer]

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            return received(tokens, fused(seen, layer, lambda chunk: joined(chunk.attention, self.fusion)))

        seen, held = watched(model, images, self.read())
        return on_pixels(carried(seen, held, step), images)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(AttentionMethod, kind="rollout"):
    """The product of all layers' attention, half of each the token itself (Abnar and Zuidema 2020, arXiv:2005.00928).

    Heads are fused by `fusion`; the share `discard` of the smallest entries of each matrix is set to 0, but for the
    first token's look at itself, as in vit-explain; then rows are brought to a sum of 1.
    """

    targeted = False
    fusion: Fusion = "mean"
    discard: Share = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            chunks = fused(seen, layer, lambda chunk: joined(chunk.attention, self.fusion))
            return rolled(seen, layer, tokens, discarded(chunks, self.discard))

        seen, held = watched(model, images, None)
        return on_pixels(carried(seen, held, step), images)


@dataclass(frozen=True, kw_only=True)
class GradientRolloutConfig(AttentionMethod, kind="gradient_rollout"):
    """Rollout of attention times its gradient, the positive part of the heads' mean (as in vit-explain).

    Where no residual branch goes around a layer, attention itself is added instead. `discard` is rollout's.
    """

    discard: Share = 0.0

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            alone = not seen.layers[layer].residual
            chunks = fused(
                seen,
                layer,
                lambda chunk: times_gradient(chunk).mean(dim=1).relu() + alone * chunk.attention.mean(dim=1),
            )
            return rolled(seen, layer, tokens, discarded(chunks, self.discard))

        seen, held = differentiated(model, images, target, None)
        return on_pixels(carried(seen, held, step), images)


def rolled(seen: Seen, layer: int, tokens: Tensor, chunks: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
    """Through one layer of a rollout: B P+N -> B P+N."""
    return received(tokens, chunks, normalise=True, residual=seen.layers[layer].residual)


def joined(attention: Tensor, fusion: Fusion) -> Tensor:
    """All heads in one: B A R P+N -> B R P+N."""
    if fusion == "mean":
        return attention.mean(dim=1)
    return attention.amax(dim=1) if fusion == "max" else attention.amin(dim=1)


def times_gradient(chunk: Chunk) -> Tensor:
    """Attention times its gradient: B A R P+N."""
    return chunk.attention * cast("Tensor", chunk.gradient)


def discarded(chunks: Iterator[tuple[Tensor, Tensor]], share: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows without the smallest entries of the whole matrix, B N N, which has to be gathered for that."""
    if share == 0.0:
        yield from chunks
        return
    rows, parts = zip(*chunks, strict=True)
    matrix = torch.cat(parts, dim=1)
    flat = matrix.flatten(1)
    kept = flat[:, 0].clone()
    lowest = flat.topk(int(flat.shape[1] * share), dim=1, largest=False).indices
    flat = flat.scatter(1, lowest, 0.0)
    flat[:, 0] = kept
    yield torch.cat(rows), flat.view_as(matrix)
