"""Relevance: attention weighted by what it means for one class, in one layer or carried through all."""

from dataclasses import dataclass

from torch import Tensor

from vitrail.explain.propagation import AttentionMethod, carried, differentiated, fused, kept, on_pixels, received
from vitrail.explain.rollout import times_gradient
from vitrail.models.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class RelevanceConfig(AttentionMethod, kind="relevance"):
    """R <- R + E_heads((A * dA)+) R over all layers, from R = I (Chefer et al. 2021, arXiv:2103.15679, 2012.09838).

    Where no residual branch goes around a layer, between LeViT's stages, R <- E_heads(A) R + E_heads((A * dA)+) R.
    """

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            chunks = fused(seen, layer, lambda chunk: times_gradient(chunk).relu().mean(dim=1))
            return kept(seen, layer, tokens) + received(tokens, chunks)

        seen, held = differentiated(model, images, target, None)
        return on_pixels(carried(seen, held, step), images)


@dataclass(frozen=True, kw_only=True)
class AttentionGradientConfig(AttentionMethod, kind="attention_gradient"):
    """The positive part of attention times its gradient in one layer, the mean of the heads (arXiv:2204.11073).

    `layer` counts attention layers, -1 for the last.
    """

    layer: int = -1

    def read(self) -> list[int]:
        """The one layer."""
        return [self.layer]

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            return received(tokens, fused(seen, layer, lambda chunk: times_gradient(chunk).relu().mean(dim=1)))

        seen, held = differentiated(model, images, target, self.read())
        return on_pixels(carried(seen, held, step), images)
