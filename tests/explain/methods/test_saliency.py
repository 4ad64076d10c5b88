"""Saliency for every family: maps of the image's size, or one sentence."""

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny
from support.small_tasks import as_task
from torch import nn

from vitrail.errors import ConfigError, InputError, Unsupported
from vitrail.explain.methods.gradients import IntegratedGradientsConfig
from vitrail.explain.methods.perturbation import OcclusionConfig, RISEConfig
from vitrail.explain.methods.rollout import RolloutConfig
from vitrail.explain.methods.saliency import METHODS, method_of, methods, saliency

ATTENTION = {"relevance", "attention_gradient", "attention", "rollout", "gradient_rollout"}
ALL = {kind.kind for kind in METHODS}
FEW = {
    "rise": RISEConfig(masks=4),
    "occlusion": OcclusionConfig(size=16, stride=16),
    "integrated_gradients": IntegratedGradientsConfig(steps=2),
}
WITHOUT = {  # family's first preset -> the methods that make no sense for it, for the reason that is given
    "resnet18": (ATTENTION, "ResNet has no attention"),
    "convnext_atto": (ATTENTION, "ConvNeXt has no attention"),
    "fastvit_t8": (ATTENTION, "FastViT has no attention"),
    "efficientnet_b0": (ATTENTION, "EfficientNet has no attention"),
    "poolformer_s12": (ATTENTION, "MetaFormer has no attention"),
    "mixer_s32": (ATTENTION, "Mixer has no attention"),
    "xcit_nano_12_p16": (ATTENTION - {"attention", "attention_gradient"}, "XCAttention mixes channels"),
}


@pytest.mark.parametrize("name", one_of_each_family())
def test_every_family_has_maps_or_a_reason(name: str) -> None:
    torch.manual_seed(0)
    model = tiny(name)
    images = pictures(model)
    without, sentence = WITHOUT.get(name, (set(), ""))
    sensible = methods(model)
    assert set(sensible) == ALL - without
    for method in sensible:
        found = saliency(model, images, FEW.get(method, method), target=1)
        assert found.shape == (2, *images.shape[2:]), method
        assert found.dtype == torch.float32
        assert found.isfinite().all(), method
    for method in without:
        with pytest.raises(Unsupported, match=sentence):
            saliency(model, images, method)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7", "swinv2_tiny_window8"])
def test_windows_that_fill_the_grid_have_maps(name: str) -> None:
    torch.manual_seed(0)
    model = tiny(name, image_size=128)
    assert set(methods(model)) == ALL
    for method in sorted(ATTENTION):
        found = saliency(model, pictures(model, 1), method)
        assert found.isfinite().all()
        assert found.std() > 0


@pytest.mark.parametrize("method", sorted(ATTENTION))
@pytest.mark.parametrize("kind", ["softmax", "window"])
def test_a_shifted_image_shifts_its_map(kind: str, method: str) -> None:
    """Without absolute positions; by one window where there are windows, which are not shifted in the first block."""
    torch.manual_seed(0)
    attention = {"kind": kind} | ({"size": 2} if kind == "window" else {})
    depth = 1 if kind == "window" else 2
    model = tiny(position="none", class_token=False, pool="mean", image_size=64, attention=attention, depth=depth)
    images = pictures(model, 1)
    found = saliency(model, images, method, target=0)
    moved = saliency(model, images.roll((16, 16), (2, 3)), method, target=0)
    # Between patches the map is interpolated, but not over the edge, where the image was cut.
    inner = slice(24, 56)
    torch.testing.assert_close(moved[:, inner, inner], found.roll((16, 16), (1, 2))[:, inner, inner])
    assert not torch.allclose(moved[:, inner, inner], found[:, inner, inner])


def test_another_image_size_than_the_trained_one() -> None:
    torch.manual_seed(0)
    model = tiny("pvt_v2_b0")
    images = torch.randn(1, 3, 128, 96)
    assert saliency(model, images, "relevance").shape == (1, 128, 96)


def test_tasks_wrappers_and_training_models_are_explained_and_left_as_they_were() -> None:
    torch.manual_seed(0)
    model = tiny(drop_path=0.5, dropout=0.5)
    images = pictures(model)
    expected = saliency(model, images)
    task = as_task(model).train()
    assert torch.equal(saliency(task, images), expected)
    assert model.training
    assert torch.equal(saliency(nn.DataParallel(model), images), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not images.requires_grad


def test_a_compiled_model_is_explained() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model)
    expected = [saliency(model, images, method) for method in ("relevance", "rollout", "gradient")]
    wrapped = torch.compile(model, backend="eager")
    assert all(
        torch.equal(saliency(wrapped, images, method), one)
        for method, one in zip(("relevance", "rollout", "gradient"), expected, strict=True)
    )
    model.compile(backend="eager")
    assert all(
        torch.equal(saliency(model, images, method), one)
        for method, one in zip(("relevance", "rollout", "gradient"), expected, strict=True)
    )


def test_without_gradients_and_in_inference_mode() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model)
    expected = saliency(model, images)
    with torch.no_grad():
        assert torch.equal(saliency(model, images), expected)
    with torch.inference_mode():
        assert torch.equal(saliency(model, images * 1), expected)


def test_frozen_and_bf16_models() -> None:
    torch.manual_seed(0)
    model = tiny().requires_grad_(False)
    images = pictures(model)
    expected = saliency(model, images)
    found = saliency(model.bfloat16(), images.bfloat16())
    assert found.dtype == torch.float32
    assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.9


def test_batches_make_no_difference() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 5)
    torch.testing.assert_close(saliency(model, images, batch=2), saliency(model, images))


def test_targets_choose_the_output() -> None:
    torch.manual_seed(0)
    model = tiny()
    model.labels = ("cat", "dog", "cow", "elk", "owl")
    images = pictures(model)
    by_name = saliency(model, images, "gradient", ["dog", "elk"])
    assert torch.equal(by_name, saliency(model, images, "gradient", torch.tensor([1, 3])))
    torch.testing.assert_close(by_name[1], saliency(model, images[1:], "gradient", 3)[0])
    best = model(images).argmax(dim=1)
    assert torch.equal(saliency(model, images, "gradient"), saliency(model, images, "gradient", best))


def test_a_model_without_a_head_has_the_maps_that_need_none() -> None:
    torch.manual_seed(0)
    model = tiny(num_classes=0)
    assert methods(model) == ["attention", "rollout"]
    assert saliency(model, pictures(model), "rollout").std() > 0
    with pytest.raises(Unsupported, match="no head"):
        saliency(model, pictures(model))


def test_a_model_that_merges_tokens_says_so() -> None:
    torch.manual_seed(0)
    model = tiny(reduce={"kind": "merge", "amount": 2})
    assert set(methods(model)) == ALL - ATTENTION
    with pytest.raises(Unsupported, match="prunes"):
        saliency(model, pictures(model), "rollout")


def test_bad_input() -> None:
    model = tiny()
    images = pictures(model)
    with pytest.raises(ConfigError, match="did you mean 'rollout'"):
        saliency(model, images, "rolout")
    with pytest.raises(ConfigError, match="batch is 0"):
        saliency(model, images, batch=0)
    with pytest.raises(InputError, match="images have 3 dimensions"):
        saliency(model, images[0])
    with pytest.raises(ConfigError, match="no output 7"):
        saliency(model, images, target=7)
    with pytest.raises(InputError, match="backbone"):
        saliency(nn.Linear(2, 2), images)
    with pytest.raises(InputError, match="empty"):
        saliency(model, images[:0], "rollout")
    with pytest.raises(ConfigError, match="ABCMeta"):
        saliency(model, images, RolloutConfig)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="str"):
        saliency("vit_tiny_patch16", images)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="discard is 1"):
        RolloutConfig(discard=1.0)
    with pytest.raises(ConfigError, match="layer 9 does not exist"):
        saliency(model, images, type(method_of("attention"))(layer=9))  # type: ignore[call-arg]
