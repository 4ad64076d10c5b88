"""Saliency: how much each pixel matters for an output of a model, by one of several methods.

maps = saliency(model, images, method="relevance", target="cat")  # B H W
maps = saliency(model, images, method=RolloutConfig(fusion="max", discard=0.9))
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, Unsupported, nearest
from vitrail.explain.methods.gradients import GradCAMConfig, GradientConfig, IntegratedGradientsConfig
from vitrail.explain.methods.method import Method, Tried
from vitrail.explain.methods.perturbation import OcclusionConfig, RISEConfig
from vitrail.explain.methods.relevance import AttentionGradientConfig, RelevanceConfig
from vitrail.explain.methods.rollout import AttentionMapConfig, GradientRolloutConfig, RolloutConfig
from vitrail.explain.methods.target import Ask, Target, check_images, targets
from vitrail.explain.unwrap import backbone_of, eval_mode, is_compiled
from vitrail.models.backbone import Backbone

METHODS: tuple[type[Method], ...] = (
    RelevanceConfig,
    AttentionGradientConfig,
    AttentionMapConfig,
    RolloutConfig,
    GradientRolloutConfig,
    GradCAMConfig,
    GradientConfig,
    IntegratedGradientsConfig,
    OcclusionConfig,
    RISEConfig,
)


def saliency(
    model: nn.Module, images: Tensor, method: str | Method = "relevance", target: Ask = None, *, batch: int = 32
) -> Tensor:
    """How much each pixel matters: images B C H W, preprocessed for the model -> B H W, float32.

    `target` is an output of the model, by index or by name, for all images or one for each; None: what the model
    answers. A method that cannot be used for the model raises Unsupported. `batch` images are explained at a time.
    """
    backbone, chosen = backbone_of(model), method_of(method)
    if batch < 1:
        raise ConfigError(f"batch is {batch}; it must be 1 or more")
    if chosen.targeted and not backbone.config.num_classes:
        raise Unsupported(f"{chosen.kind} explains an output, but the model has no head (num_classes is 0)")
    check_images(backbone, images)
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if is_compiled(backbone):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        images = images.clone() if images.is_inference() else images.detach()
        none = Target(images.new_zeros(len(images)).long())
        known = targets(model, images, target) if chosen.targeted else none
        maps = [
            chosen.maps(backbone, some, which)
            for some, which in zip(images.split(batch), known.split(batch), strict=True)
        ]
    return torch.cat(maps).detach().float()


def methods(model: nn.Module) -> list[str]:
    """Names of the methods that can be used for a model at its image size; the recommended one comes first."""
    return usable([kind() for kind in METHODS], backbone_of(model))


def usable(choices: Sequence[Method], model: Backbone) -> list[str]:
    """Names of those of some methods that can be used for a model."""
    tried: Tried = {}
    with eval_mode(model):
        return [method.kind for method in choices if method.refusal(model, tried) is None]


def method_of(method: str | Method) -> Method:
    """A method by name with its default options, or the method itself."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        raise ConfigError(f"method must be a name or a config such as RolloutConfig(), not a {type(method).__name__}")
    if method not in Method.kinds:
        raise ConfigError(f"unknown saliency method {method!r}; {nearest(method, Method.kinds)}")
    return cast("Method", Method.kinds[method]())
