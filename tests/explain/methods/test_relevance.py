"""Relevance against the published algorithm, with attention written out and autograd's gradients."""

import pytest
import torch
from support.explicit_attention import explicit_pass
from support.registered import pictures, tiny
from torch import Tensor

from vitrail.explain.attention.capture import capture
from vitrail.explain.methods.placement import Strides, to_pixels
from vitrail.explain.methods.relevance import AttentionGradientConfig, RelevanceConfig
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone


def published(attention: list[Tensor], gradients: list[Tensor]) -> Tensor:
    """R = I, then R += mean over heads of (gradient * attention)+ times R, layer by layer: B N N (arXiv:2103.15679)."""
    relevance = torch.eye(attention[0].shape[-1]).expand(len(attention[0]), -1, -1).clone()
    for one, slope in zip(attention, gradients, strict=True):
        cam = (slope * one).clamp(min=0).mean(dim=1)
        relevance += cam @ relevance
    return relevance


def on_pixels(model: Backbone, row: Tensor) -> Tensor:
    """What patches hold, B N -> B H W."""
    return to_pixels(row.unflatten(1, model.config.grid(model.config.image_size)), model.config.image_size, Strides())


def test_relevance_is_the_published_algorithm() -> None:
    torch.manual_seed(0)
    model = tiny(depth=3)
    images, target = pictures(model, 3), torch.tensor([1, 4, 0])
    attention, gradients, logits = explicit_pass(model, images, target)
    torch.testing.assert_close(model(images), logits)
    expected = on_pixels(model, published(attention, gradients)[:, 0, 1:])
    found = RelevanceConfig().maps(model, images, Target(target))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 1e-3


def test_relevance_without_a_class_token_is_the_mean_of_the_rows() -> None:
    torch.manual_seed(0)
    model = tiny(class_token=False, pool="mean")
    images, target = pictures(model), torch.tensor([1, 4])
    attention, gradients, _ = explicit_pass(model, images, target)
    expected = on_pixels(model, published(attention, gradients).mean(dim=1))
    torch.testing.assert_close(RelevanceConfig().maps(model, images, Target(target)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_times_gradient(layer: int) -> None:
    torch.manual_seed(0)
    model = tiny(class_token=False, pool="mean")
    images, target = pictures(model), torch.tensor([2, 3])
    attention, gradients, _ = explicit_pass(model, images, target)
    expected = (attention[layer] * gradients[layer]).clamp(min=0).mean(dim=(1, 2))
    found = AttentionGradientConfig(layer=layer).maps(model, images, Target(target))
    torch.testing.assert_close(found, on_pixels(model, expected), rtol=1e-5, atol=1e-6)


def test_the_gradient_without_the_matrix_is_that_of_autograd() -> None:
    """The mixed heads' gradient times the values is the gradient to attention; double precision in, float32 out."""
    torch.manual_seed(0)
    model = tiny().double()
    images, target = pictures(model, dtype=torch.float64), torch.tensor([2, 3])
    _, gradients, _ = explicit_pass(model, images, target)
    with capture(model, gradients=True) as seen:
        model(images).gather(1, target[:, None]).sum().backward()
    for layer, expected in enumerate(gradients):
        torch.testing.assert_close(seen.gradients[layer], expected.float(), rtol=1e-5, atol=1e-6)


def test_relevance_depends_on_the_class() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 1)
    first, second = (RelevanceConfig().maps(model, images, Target(torch.tensor([number]))) for number in (0, 1))
    assert not torch.allclose(first, second)
    assert first.min() >= 0
