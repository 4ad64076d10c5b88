"""Grad-CAM against its formula, where the head is a mean and a linear map, so that gradients are known by hand."""

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.models.registry import create
from vitrail.tasks.grad_cam import grad_cam


@pytest.fixture(scope="module")
def model():
    small = {"image_size": 32, "dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    made = create("vit_tiny_patch16", patch={"size": 8}, class_token=False, pool="mean", **small).double().eval()
    torch.nn.init.normal_(made.head.weight)
    return made


def by_hand(model, images, target):
    """Of mean pooling every patch has the slope w / N, so that the map is relu(patches w) / N."""
    features = model.features(images)
    rows = model.head.weight[target]  # B D
    maps = torch.einsum("bnd,bd->bn", features.patches, rows).relu() / features.patches.shape[1]
    return maps.unflatten(1, features.grid)


def test_a_mean_and_a_linear_head(model):
    images, target = torch.randn(3, 3, 32, 32, dtype=torch.float64), torch.tensor([2, 0, 1])
    torch.testing.assert_close(grad_cam(model, images, target), by_hand(model, images, target).detach())


def test_without_a_target_it_is_the_likeliest_class_and_weights_need_not_learn(model):
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    target = model(images).argmax(dim=1)
    model.requires_grad_(requires_grad=False)
    with torch.no_grad():
        found = grad_cam(model, images)
    model.requires_grad_(requires_grad=True)
    torch.testing.assert_close(found, by_hand(model, images, target).detach())


def test_a_constant_model_and_a_level_that_does_not_exist(model):
    with pytest.raises(ConfigError, match="level 1 does not exist; the model has 1"):
        grad_cam(model, torch.zeros(1, 3, 32, 32, dtype=torch.float64), level=1)
    fresh = create("vit_tiny_patch16", image_size=32, dim=16, depth=1, num_heads=2, patch={"size": 8}).eval()
    assert not grad_cam(fresh, torch.randn(2, 3, 32, 32)).any()  # its head is zeros
