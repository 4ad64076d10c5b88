"""Which parameters decay, how fast each layer learns, and that the step is AdamW's."""

import pytest
import torch
from support.registered import tiny
from torch import nn

from vitrail.errors import TrainingError
from vitrail.training.config import OptimiserConfig
from vitrail.training.optim.optimiser import build, clip, groups, learned, set_rate

CPU = torch.device("cpu")


def decaying(model: nn.Module) -> set[str]:
    return {each.name for each in learned(model) if each.decays}


def test_norms_biases_positions_tokens_and_layer_scales_do_not_decay() -> None:
    model = tiny(layer_scale=0.5, registers=2, position=["learned", "relative"], pool="attention")
    kept = decaying(model)
    for name, parameter in model.named_parameters():
        is_map = parameter.ndim > 1 and not any(
            word in name for word in ("norm", "prefix", "position", "table", "query", "scale")
        )
        assert (name in kept) == is_map, name
    assert {"patch.projection.weight", "blocks.0.attention.qkv.weight", "head.weight"} <= kept


def test_layer_decay_counts_blocks_over_all_stages() -> None:
    model = tiny("swin_tiny_patch4_window7")
    layers = {name: layer for name, _, _, layer in learned(model)}
    depth = len(model.blocks)
    assert {layers[name] for name in layers if name.startswith("stem.")} == {0}
    assert {layers[name] for name in layers if ".blocks." in name} == set(range(1, depth + 1))
    assert layers["head.weight"] == depth + 1
    merging = next(name for name in layers if name.startswith("stages.1.downsample"))
    assert layers[merging] == layers[next(name for name in layers if name.startswith("stages.1.blocks.0."))]


def test_layer_decay_counts_from_the_head() -> None:
    found = groups(tiny(), OptimiserConfig(lr=1.0, layer_decay=0.5))
    scale = {name: group["scale"] for group in found for name in group["names"]}
    assert scale["head.weight"] == scale["norm.weight"] == 1.0
    assert scale["blocks.1.norm1.weight"] == 0.5
    assert scale["blocks.0.mlp.fc1.weight" if "blocks.0.mlp.fc1.weight" in scale else "blocks.0.norm1.weight"] == 0.25
    assert scale["patch.projection.weight"] == scale["prefix.class_token"] == scale["position.0.table"] == 0.125
    assert [group["lr"] for group in found] == [group["scale"] for group in found]


def test_every_parameter_stands_in_one_group() -> None:
    model = tiny()
    names = [name for group in groups(model, OptimiserConfig(layer_decay=0.7)) for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_frozen_parameters_are_left_out() -> None:
    model = tiny()
    model.blocks.requires_grad_(requires_grad=False)
    names = [name for group in groups(model, OptimiserConfig()) for name in group["names"]]
    assert names
    assert not any(name.startswith("blocks") for name in names)
    model.requires_grad_(requires_grad=False)
    with pytest.raises(TrainingError, match="every parameter is frozen"):
        groups(model, OptimiserConfig())


def test_a_step_is_adamws() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 2.0)
    optimiser = build(layer, OptimiserConfig(lr=0.1, weight_decay=0.5), CPU)
    set_rate(optimiser, 0.1)
    layer.weight.grad = torch.full((1, 1), 3.0)
    optimiser.step()
    # Decay first, 2 (1 - 0.1 * 0.5) = 1.9, then a first step of the rate itself: 1.8.
    assert layer.weight.item() == pytest.approx(1.8, abs=1e-6)


def test_set_rate_keeps_the_shares() -> None:
    optimiser = build(tiny(), OptimiserConfig(layer_decay=0.5), CPU)
    set_rate(optimiser, 0.01)
    assert {group["lr"] for group in optimiser.param_groups} == {0.01, 0.005, 0.0025, 0.00125}


def test_clip_scales_to_the_limit_and_returns_the_norm_before() -> None:
    layer = nn.Linear(2, 1, bias=False)
    optimiser = build(layer, OptimiserConfig(), CPU)
    layer.weight.grad = torch.tensor([[3.0, 4.0]])
    assert clip(optimiser, 1.0).item() == pytest.approx(5.0)
    assert torch.allclose(layer.weight.grad, torch.tensor([[0.6, 0.8]]), atol=1e-6)
    assert clip(optimiser, None).item() == pytest.approx(1.0, abs=1e-6)
    assert torch.allclose(layer.weight.grad, torch.tensor([[0.6, 0.8]]), atol=1e-6)
