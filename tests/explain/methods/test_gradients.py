"""Gradients of pixels and of levels, and the completeness of integrated gradients."""

import pytest
import torch
from support.registered import pictures, tiny

from vitrail.errors import ConfigError
from vitrail.explain.methods.gradients import GradCAMConfig, GradientConfig, IntegratedGradientsConfig
from vitrail.explain.methods.placement import Strides, record_strides, to_pixels
from vitrail.explain.methods.target import Target
from vitrail.models.backbone import Backbone
from vitrail.models.vit import ViT


def gentle() -> Backbone:
    """A small ViT in float64 whose weights are small enough for the path to be smooth."""
    torch.manual_seed(0)
    model = tiny().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    return model


@pytest.mark.parametrize(("steps", "error"), [(16, 1e-3), (64, 1e-5), (128, 1e-9)])
def test_integrated_gradients_are_complete(steps: int, error: float) -> None:
    model, target = gentle(), torch.tensor([1, 4])
    images = pictures(model, dtype=torch.float64)
    found = IntegratedGradientsConfig(steps=steps, baseline=0.1).attributions(model, images, Target(target))
    change = Target(target).output(model(images)) - Target(target).output(model(torch.full_like(images, 0.1)))
    assert found.dtype == torch.float64
    assert ((found.sum(dim=(1, 2, 3)) - change).abs() / change.abs()).max() < error


def test_gradient_by_differences() -> None:
    model, target = gentle(), torch.tensor([2])
    images = pictures(model, 1, dtype=torch.float64)
    found = GradientConfig().maps(model, images, Target(target))
    slopes = []
    for channel in range(3):
        moved = torch.zeros_like(images)
        moved[0, channel, 5, 9] = 1e-6
        slopes.append(
            ((Target(target).output(model(images + moved)) - Target(target).output(model(images - moved))) / 2e-6).abs()
        )
    torch.testing.assert_close(found[0, 5, 9], torch.stack(slopes).max(), rtol=1e-6, atol=1e-9)


def test_grad_cam_of_a_mean_and_a_linear_head_is_the_class_activation_map() -> None:
    """The gradient of the mean is w / N everywhere, so that the map is that of arXiv:1512.04150."""
    torch.manual_seed(0)
    model = tiny("resnet18").double()
    images, target = pictures(model, dtype=torch.float64), torch.tensor([1, 3])
    with record_strides(model) as strides:
        last = model.features(images).pyramid[-1]
    weight = model.get_submodule("head").weight[target]  # type: ignore[index]
    cam = torch.einsum("bd,bdhw->bhw", weight, last).relu() / (last.shape[2] * last.shape[3])
    found = GradCAMConfig().maps(model, images, Target(target))
    torch.testing.assert_close(found, to_pixels(cam, model.config.image_size, strides))


@pytest.mark.parametrize("level", [0, 1, -1])
@pytest.mark.parametrize("name", ["resnet18", "pvt_tiny", "cvt_13"])
def test_grad_cam_on_any_level(name: str, level: int) -> None:
    torch.manual_seed(0)
    model = tiny(name)
    images = pictures(model)
    found = GradCAMConfig(level=level).maps(model, images, Target(torch.tensor([0, 1])))
    assert found.shape == (2, *images.shape[2:])
    assert found.isfinite().all()
    assert found.min() >= 0


def test_grad_cam_reads_what_entered_the_last_block_where_the_class_token_alone_is_classified() -> None:
    torch.manual_seed(0)
    model = tiny().double()
    assert isinstance(model, ViT)
    images, target = pictures(model, dtype=torch.float64), torch.tensor([1, 3])
    tokens, grid = model.embed(images)
    entered = model.blocks[0](tokens, grid).detach().requires_grad_()
    logits = model.head(model.norm(model.blocks[1](entered, grid))[:, 0])
    (slope,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), entered)
    cam = (slope[:, 1:].mean(dim=1, keepdim=True) * entered[:, 1:]).sum(dim=2).relu().unflatten(1, grid)
    expected = to_pixels(cam.detach(), model.config.image_size, Strides())
    torch.testing.assert_close(GradCAMConfig().maps(model, images, Target(target)), expected)
    assert expected.max() > 0


def test_a_level_that_does_not_exist() -> None:
    model = tiny("resnet18")
    with pytest.raises(ConfigError, match="level 4"):
        GradCAMConfig(level=4).maps(model, pictures(model), Target(torch.tensor([0, 0])))
