"""Relevance: attention weighted by its gradient, in one layer or propagated through all."""

from dataclasses import dataclass

from torch import Tensor

from vitrail.explain.methods.propagation import (
    AttentionMethod,
    capture_gradients,
    fuse_heads,
    on_pixels,
    pass_through,
    propagate,
    receive,
)
from vitrail.explain.methods.rollout import times_gradient
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class RelevanceConfig(AttentionMethod, kind="relevance"):
    """R <- R + E_heads((A * dA)+) R over all layers, from R = I (Chefer et al. 2021, arXiv:2103.15679, 2012.09838).

    For layers without a residual branch, between LeViT's stages, R <- E_heads(A) R + E_heads((A * dA)+) R.
    """

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            chunks = fuse_heads(captured, layer, lambda chunk: times_gradient(chunk).relu().mean(dim=1))
            return pass_through(captured, layer, tokens) + receive(tokens, chunks)

        captured, importance = capture_gradients(model, images, target, None)
        return on_pixels(propagate(captured, importance, step), images)


@dataclass(frozen=True, kw_only=True)
class AttentionGradientConfig(AttentionMethod, kind="attention_gradient"):
    """The positive part of attention times its gradient in one layer, mean over heads (arXiv:2204.11073).

    `layer` is an index of the attention layers, -1 for the last.
    """

    layer: int = -1

    def layers(self) -> list[int]:
        """The layer that is read."""
        return [self.layer]

    def maps(self, model: Backbone, images: Tensor, target: Target) -> Tensor:
        """B H W, not negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            return receive(tokens, fuse_heads(captured, layer, lambda chunk: times_gradient(chunk).relu().mean(dim=1)))

        captured, importance = capture_gradients(model, images, target, self.layers())
        return on_pixels(propagate(captured, importance, step), images)
