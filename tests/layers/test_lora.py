"""LoRA: the output is initially unchanged, few parameters are trainable, and merging is exact."""

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny
from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.lora import TARGETS, LoRALinear, add_lora, merge_lora
from vitrail.models.checkpoint import load, save


def maps(name: str) -> bool:
    """Whether a family has linear maps with the default names."""
    return any(path.rpartition(".")[2] in TARGETS and type(m) is nn.Linear for path, m in tiny(name).named_modules())


with_maps = pytest.mark.parametrize("name", [name for name in one_of_each_family() if maps(name)])


def taught(model):
    """The model with random LoRA updates."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    return model


@with_maps
def test_the_output_is_unchanged_at_the_start(name):
    model = tiny(name)
    images = pictures(model)
    before = model(images)
    add_lora(model, 4)
    torch.testing.assert_close(model(images), before, atol=1e-6, rtol=1e-5)


def test_names_stay_and_only_updates_and_heads_learn():
    model = tiny("deit_tiny_distilled_patch16")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    add_lora(model, 2)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    added = set(after) - set(before)
    wrapped = ("attention.qkv", "attention.projection", "mlp.fc1", "mlp.fc2")
    assert added == {f"blocks.{i}.{part}.lora_{ab}" for i in (0, 1) for part in wrapped for ab in "ab"}
    learns = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    heads = {"head.weight", "head.bias", "distillation_head.weight", "distillation_head.bias"}
    assert learns == added | heads


def test_a_rank_of_one_will_do():
    assert add_lora(tiny(), 1).blocks[0].mlp.fc1.lora_a.shape == (1, 32)


def test_by_hand():
    linear = nn.Linear(3, 2)
    layer = LoRALinear(linear, rank=1, alpha=4.0)
    with torch.no_grad():
        layer.lora_a.copy_(torch.tensor([[1.0, 2, 3]]))
        layer.lora_b.copy_(torch.tensor([[1.0], [-1]]))
    x = torch.tensor([[1.0, 1, 1]])
    torch.testing.assert_close(layer(x), linear(x) + 4 * 6 * torch.tensor([[1.0, -1]]))
    update = 4 * torch.tensor([[1.0, 2, 3], [-1, -2, -3]])
    torch.testing.assert_close(layer.merged().weight, linear.weight + update)


@with_maps
def test_merging_is_exact_and_gives_plain_layers_back(name, tmp_path):
    model = taught(add_lora(tiny(name), 4, alpha=8.0))
    images = pictures(model)
    before, plain = model(images), tiny(name)
    assert not torch.allclose(before, plain(images))
    assert merge_lora(model) is model
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert (model(images) - before).abs().max() < 1e-5 * before.abs().max()
    save(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(load(tmp_path / "model.safetensors")(images), model(images), atol=1e-6, rtol=1e-5)


def test_merging_in_double_is_exact_to_rounding():
    model = taught(add_lora(tiny().double(), 4))
    images = pictures(model, dtype=torch.float64)
    before = model(images)
    torch.testing.assert_close(merge_lora(model)(images), before, atol=1e-10, rtol=1e-10)


def test_learns_while_the_base_stays():
    model = add_lora(tiny(), 4).train()
    images, labels = pictures(model, 5), torch.arange(5)
    base = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    first = nn.functional.cross_entropy(model(images), labels).item()
    for _ in range(30):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.3 * first
    state = dict(model.named_parameters())
    assert all(torch.equal(state[name], value) for name, value in base.items())
    assert state["blocks.0.attention.qkv.lora_b"].abs().max() > 0


def test_batch_norms_of_the_base_keep_their_statistics():
    model = add_lora(tiny("vit32_conv"), 4).train()
    before = {name: tensor.clone() for name, tensor in model.named_buffers() if "running" in name}
    model(pictures(model))
    assert before
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers() if name in before)


def test_alpha_is_the_rank_unless_given_and_targets_can_be_chosen():
    model = add_lora(tiny(), 4, targets=("qkv",))
    found = [module for module in model.modules() if isinstance(module, LoRALinear)]
    assert [layer.scale for layer in found] == [1.0, 1.0]
    assert add_lora(tiny(), 4, alpha=8.0).blocks[0].mlp.fc1.scale == 2.0


def test_keeps_dtype_mode_and_bias_or_none():
    model = add_lora(tiny(attention={"bias": "none"}).bfloat16().train(), 2)
    layer = model.blocks[1].attention.qkv
    assert layer.lora_a.dtype == torch.bfloat16
    assert layer.training
    assert layer.bias is None
    assert merge_lora(model).blocks[1].attention.qkv.bias is None


def test_fresh_updates_come_from_the_seed():
    first, second = (add_lora(tiny(), 2) for _ in range(2))
    assert not torch.equal(first.blocks[0].mlp.fc1.lora_a, second.blocks[0].mlp.fc1.lora_a)
    torch.manual_seed(4)
    third = add_lora(tiny(), 2)
    torch.manual_seed(4)
    assert torch.equal(third.blocks[0].mlp.fc1.lora_a, add_lora(tiny(), 2).blocks[0].mlp.fc1.lora_a)


@pytest.mark.parametrize(
    ("rank", "targets", "message"),
    [
        (0, ("qkv",), r"rank .*0"),
        (2, ("qvk",), r"'qvk'.*'qkv'"),
        (2, ("head",), "'head'"),
    ],
)
def test_bad_options_are_refused_and_change_nothing(rank, targets, message):
    model = tiny()
    with pytest.raises(ConfigError, match=message):
        add_lora(model, rank, targets=targets)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_twice_is_refused():
    model = add_lora(tiny(), 2)
    with pytest.raises(ConfigError, match="LoRA"):
        add_lora(model, 2)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="qkv"):
        add_lora(nn.Sequential(nn.Linear(2, 2)), 2)
