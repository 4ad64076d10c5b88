"""Saliency: how much each pixel matters for what a model says, by any of several methods.

maps = saliency(model, images, method="relevance", target="cat")  # B H W
maps = saliency(model, images, method=RolloutConfig(fusion="max", discard=0.9))
"""

from contextlib import ExitStack
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, Unsupported, nearest
from vitrail.explain.gradients import GradCAMConfig, GradientConfig, IntegratedGradientsConfig
from vitrail.explain.layer import is_compiled
from vitrail.explain.method import Method, Target, check, classes, evaluating
from vitrail.explain.perturbation import OcclusionConfig, RISEConfig
from vitrail.explain.relevance import AttentionGradientConfig, RelevanceConfig
from vitrail.explain.rollout import AttentionMapConfig, GradientRolloutConfig, RolloutConfig
from vitrail.explain.subject import subject

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
    model: nn.Module, images: Tensor, method: str | Method = "relevance", target: Target = None, *, batch: int = 32
) -> Tensor:
    """How much each pixel matters: images B C H W, as the model takes them -> B H W, float32.

    `target` is a class, by number or by name, for all images or one for each; None: those that are predicted. A method
    that makes no sense for the model raises Unsupported. `batch` images are explained at a time.
    """
    backbone, chosen = subject(model), method_of(method)
    if batch < 1:
        raise ConfigError(f"batch is {batch}; it must be 1 or more")
    if chosen.targeted and not backbone.config.num_classes:
        raise Unsupported(f"{chosen.kind} explains a class, and the model has no head (num_classes is 0)")
    check(backbone, images)
    with ExitStack() as stack:
        stack.enter_context(evaluating(backbone))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if is_compiled(backbone):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        images = images.clone() if images.is_inference() else images.detach()
        known = classes(backbone, images, target) if chosen.targeted else images.new_zeros(len(images)).long()
        found = [
            chosen.maps(backbone, some, which)
            for some, which in zip(images.split(batch), known.split(batch), strict=True)
        ]
    return torch.cat(found).detach().float()


def methods(model: nn.Module) -> list[str]:
    """The names of the methods that make sense for a model at its image size, the one to begin with first."""
    backbone = subject(model)
    with evaluating(backbone):
        return [kind.kind for kind in METHODS if kind().refusal(backbone) is None]


def method_of(method: str | Method) -> Method:
    """A method by its name, as it stands; or the one that is given."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        raise ConfigError(f"the method is a {type(method).__name__}; give its name, or its config: RolloutConfig()")
    if method not in Method.kinds:
        raise ConfigError(f"there is no saliency method {method!r}; {nearest(method, Method.kinds)}")
    return cast("Method", Method.kinds[method]())
