"""Attention maps and rollout against vit-explain's definition, written out."""

from typing import Literal

import pytest
import torch
from support.explicit_attention import explicit_pass
from support.registered import pictures, tiny
from torch import Tensor

from vitrail.explain.methods.placement import Strides, to_pixels
from vitrail.explain.methods.rollout import AttentionMapConfig, GradientRolloutConfig, RolloutConfig
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone


def published(matrices: list[Tensor], discard: float) -> Tensor:
    """vit-explain's product of fused matrices B N N -> the class token's row, B N; rows are normalised as is meant."""
    result = torch.eye(matrices[0].shape[-1]).expand_as(matrices[0])
    for fused in matrices:
        kept = []
        for one in fused:
            flat = one.flatten().clone()
            lowest = flat.topk(int(len(flat) * discard), largest=False).indices
            flat[lowest[lowest != 0]] = 0
            kept.append(flat.view_as(one))
        mixed = (torch.stack(kept) + torch.eye(fused.shape[-1])) / 2
        result = mixed / mixed.sum(dim=-1, keepdim=True) @ result
    return result[:, 0]


def on_pixels(model: Backbone, row: Tensor) -> Tensor:
    """The patches of a class token's row, B 1+N -> B H W."""
    grid = model.config.grid(model.config.image_size)
    return to_pixels(row[:, 1:].unflatten(1, grid), model.config.image_size, Strides())


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_rollout_is_that_of_vit_explain(fusion: Literal["mean", "max", "min"], discard: float) -> None:
    torch.manual_seed(0)
    model = tiny(depth=3)
    images, target = pictures(model), torch.tensor([0, 1])
    attention, _, _ = explicit_pass(model, images, target)
    fuse = {"mean": lambda one: one.mean(1), "max": lambda one: one.amax(1), "min": lambda one: one.amin(1)}[fusion]
    expected = on_pixels(model, published([fuse(one) for one in attention], discard))
    found = RolloutConfig(fusion=fusion, discard=discard).maps(model, images, Target(target))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 1e-3


@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_gradient_rollout_is_that_of_vit_explain(discard: float) -> None:
    torch.manual_seed(0)
    model = tiny(depth=3)
    images, target = pictures(model), torch.tensor([3, 1])
    attention, gradients, _ = explicit_pass(model, images, target)
    fused = [(one * slope).mean(dim=1).clamp(min=0) for one, slope in zip(attention, gradients, strict=True)]
    expected = on_pixels(model, published(fused, discard))
    found = GradientRolloutConfig(discard=discard).maps(model, images, Target(target))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, -1])
def test_attention_is_the_class_tokens_row(layer: int) -> None:
    torch.manual_seed(0)
    model = tiny()
    images, target = pictures(model), torch.tensor([0, 0])
    attention, _, _ = explicit_pass(model, images, target)
    found = AttentionMapConfig(layer=layer).maps(model, images, Target(target))
    torch.testing.assert_close(found, on_pixels(model, attention[layer].mean(dim=1)[:, 0]), rtol=1e-5, atol=1e-5)


def test_attention_without_a_class_token_is_the_mean_over_queries() -> None:
    torch.manual_seed(0)
    model = tiny(class_token=False, pool="mean")
    images, target = pictures(model), torch.tensor([0, 0])
    attention, _, _ = explicit_pass(model, images, target)
    row = attention[-1].mean(dim=(1, 2)).unflatten(1, model.config.grid(model.config.image_size))
    expected = to_pixels(row, model.config.image_size, Strides())
    torch.testing.assert_close(AttentionMapConfig().maps(model, images, Target(target)), expected, rtol=1e-5, atol=1e-5)


def test_attention_sees_no_class() -> None:
    assert not AttentionMapConfig.targeted
    assert not RolloutConfig.targeted
    assert GradientRolloutConfig.targeted
