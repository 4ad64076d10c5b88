"""Blocks whose residual connections and norms share a kernel compute the same, where they do, and elsewhere do not."""

import pytest
import torch
from support.eight_bits import needs_products
from support.on_cpu import operators_on_cpu
from support.registered import randomise
from torch import nn

import vitrail
from vitrail.layers import kernels
from vitrail.layers.fp8 import Fp8Linear, use_fp8
from vitrail.layers.lora import LoRALinear

SMALL = {"dim": 32, "depth": 3, "num_heads": 2, "image_size": 32, "num_classes": 5, "dropout": 0.0}
WAYS = {
    "plain": {},
    "layer scale": {"layer_scale": 0.5},
    "drop path": {"drop_path": 0.4},
    "both": {"layer_scale": 0.5, "drop_path": 0.4},
    "pooled": {"final_norm": "pooled", "pool": "mean", "class_token": False, "registers": 2},
    "patch drop": {"patch_drop": 0.5},
}


@pytest.fixture
def on_cpu(monkeypatch):
    with operators_on_cpu(monkeypatch) as calls:
        yield calls


def vit(**options):
    torch.manual_seed(0)
    return randomise(vitrail.create("vit_tiny_patch16", **(SMALL | options))).train()


def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def trained(model, *, compiled=False):
    """The output and the gradient of every parameter."""
    torch.manual_seed(2)
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    found = run(images())
    found.square().sum().backward()
    return {"output": found.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


def count(calls):
    return calls.count("add_norm"), calls.count("add_norm_backward")


def agree(found, expected, **limits):
    assert found.keys() == expected.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name], **limits, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_computes_the_same_with_the_kernel(on_cpu, monkeypatch, way, compiled):
    found = trained(vit(**WAYS[way]), compiled=compiled)
    assert count(on_cpu) == (5, 5)  # two for each block, but for the last
    monkeypatch.setattr(kernels, "NORMED", 0)
    expected = trained(vit(**WAYS[way]))
    assert count(on_cpu) == (5, 5)
    agree(found, expected, rtol=1e-4, atol=1e-4)


def test_intermediates_are_those_after_each_block(on_cpu, monkeypatch):
    model = vit().eval()
    found = model.intermediates(images(), [0, 2])
    (found[0].patches.sum() + 0 * found[1].patches.sum()).backward()
    early = model.intermediates(images(), [1])
    middle = model.read(images(), [0])[1]
    middle[0].patches.sum().backward()  # nothing after the first block has a gradient
    assert on_cpu.count("add_norm") == 5 + 3 + 5
    monkeypatch.setattr(kernels, "NORMED", 0)
    expected = [*model.intermediates(images(), [0, 2]), *model.intermediates(images(), [1]), *middle]
    for one, other in zip([*found, *early, *middle], expected, strict=True):
        torch.testing.assert_close(one.patches, other.patches)
        torch.testing.assert_close(one.prefix, other.prefix)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_stream_has_16_bits_where_it_may(on_cpu, monkeypatch, compiled):
    """Under autocast; what the model returns keeps its type, and its numbers are those in 32 bits, roughly."""
    kinds, add_norm = [], kernels.add_norm
    monkeypatch.setattr(
        kernels, "add_norm", lambda x, *rest, **options: kinds.append(x.dtype) or add_norm(x, *rest, **options)
    )
    with torch.autocast("cpu", torch.bfloat16):
        expected = trained(vit())
        monkeypatch.setattr(kernels, "STREAM", True)
        found = trained(vit(), compiled=compiled)
    assert kinds == [torch.float32] * 5 + [torch.bfloat16] * 5
    assert count(on_cpu) == (10, 10)
    for name, one in found.items():
        assert one.dtype == expected[name].dtype
        assert (one - expected[name]).norm() < 0.05 * expected[name].norm().clamp(min=1e-3), name


def hooked(name, register="register_forward_hook"):
    def change(model):
        getattr(model.blocks[1].get_submodule(name), register)(lambda *_: None)

    return change


def with_lora(model):
    mlp = model.blocks[0].mlp
    mlp.fc2 = LoRALinear(mlp.fc2, rank=2, alpha=2.0)


def checkpointed(model):
    model.checkpointing = True


def compiled_alone(model):
    model.blocks[1].compile(backend="eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of a block that is compiled by itself
@pytest.mark.parametrize(
    "change",
    [
        hooked(""), hooked("norm1"), hooked("norm2", "register_forward_pre_hook"), hooked("attention"),
        hooked("attention.projection"), hooked("mlp"), hooked("mlp.fc2"), hooked("scale1"), hooked("drop_path"),
        hooked("attention", "register_full_backward_hook"), with_lora, checkpointed, compiled_alone,
    ],
)  # fmt: skip
def test_what_is_left_out_is_called_if_something_listens(on_cpu, change):
    model = vit()
    change(model)
    model(images()).sum().backward()
    assert count(on_cpu) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.1}, {"norm": "rms"}, {"norm": "layer_unbiased"}, {"norm_placement": "post"}, {"mlp": "swiglu"},
        {"norm_placement": "res_post"}, {"attention": "linear"}, {"reduce": "merge"}, {"depth": 0},
    ],
    ids=str,
)  # fmt: skip
def test_other_blocks_do_not_use_the_kernel(on_cpu, options):
    vit(**options)(images()).sum().backward()
    assert count(on_cpu) == (0, 0)


def test_small_inputs_and_passes_without_gradients_do_not_use_the_kernel(on_cpu, monkeypatch):
    with torch.no_grad():
        vit()(images())
    monkeypatch.setattr(kernels, "LARGE", 1 << 22)
    vit()(images())
    assert count(on_cpu) == (0, 0)


def test_dropout_is_none_in_evaluation(on_cpu):
    vit(dropout=0.1).eval()(images())
    assert count(on_cpu) == (5, 0)


def test_hooks_on_what_is_still_called_are_heard(on_cpu):
    model, seen = vit(), []
    model.blocks[1].attention.qkv.register_forward_hook(lambda *_: seen.append("qkv"))
    model.blocks[1].attention.readout.register_forward_pre_hook(lambda *_: seen.append("readout"))
    model(images())
    assert seen == ["qkv", "readout"]
    assert count(on_cpu) == (5, 0)


def test_layers_with_8_bits_keep_their_bias_for_the_kernel(on_cpu):
    model = use_fp8(vit())
    assert type(model.blocks[0].mlp.fc2) is Fp8Linear
    model(images()).sum().backward()
    assert count(on_cpu) == (5, 5)
    assert "bias_gelu_rows" not in on_cpu  # nothing has 16 bits here


@needs_products
def test_layers_in_8_bits_take_the_rows_that_gelu_wrote(on_cpu, monkeypatch):
    with torch.autocast("cpu", torch.bfloat16):
        found = trained(use_fp8(vit()))
    assert count(on_cpu) == (5, 5)
    assert on_cpu.count("bias_gelu_rows") == 3
    monkeypatch.setattr(kernels, "suits", lambda _: False)
    with torch.autocast("cpu", torch.bfloat16):
        expected = trained(use_fp8(vit()))
    for name, one in found.items():
        assert (one - expected[name]).norm() < 0.1 * expected[name].norm(), name


def test_shapes_are_known_without_a_kernel():
    x, norm = torch.empty(2, 3, 8, device="meta"), nn.LayerNorm(8, device="meta")
    branch = torch.empty(2, 3, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
    added, normed = kernels.add_norm(x, branch, norm.bias, norm, gain=norm.weight, keep=x[:, 0, 0])
    assert (added.shape, added.dtype, normed.shape, normed.dtype) == ((2, 3, 8), x.dtype, (2, 3, 8), branch.dtype)
    (added.sum() + normed.sum()).backward()
    assert (branch.grad.shape, branch.grad.dtype) == (branch.shape, branch.dtype)
    assert norm.weight.grad.shape == (8,)
