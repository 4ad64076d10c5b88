"""Linear layers in 8 bits: close to those in 32, in all gradients; they learn; the model stays the same."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.layers.fp8 import Fp8Linear, rounded, use_fp8, without_bias
from vitrail.models.registry import create

LIMITS = (0.05, 0.1, 0.1, 0.01)  # 3 bits of mantissa round by 1/16 at most, 2 bits, those of gradients, by 1/8


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_rounding_uses_the_whole_range(scale: float) -> None:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * scale
    found, factor = rounded(values, torch.float8_e4m3fn)
    assert found.float().abs().max() == 448
    assert distance(found.float() * factor, values) < 0.04
    assert not rounded(torch.zeros(16, 16), torch.float8_e4m3fn)[0].float().any()


def test_output_and_gradients_are_near_those_of_a_plain_layer() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 96)
    layer, tokens, grad = Fp8Linear.of(plain), torch.randn(4, 8, 64), torch.randn(4, 8, 96)
    assert layer.weight is plain.weight
    with torch.autocast("cpu", torch.bfloat16):
        for name, each in (("fp8", layer), ("plain", plain)):
            leaf = tokens.clone().requires_grad_()
            plain.zero_grad()
            out = each(leaf)
            out.backward(grad.to(out.dtype))
            found = [out.detach(), leaf.grad, plain.weight.grad.clone(), plain.bias.grad.clone()]
            if name == "fp8":
                ours = found
    assert ours[0].dtype == torch.bfloat16
    assert ours[2].dtype == torch.float32
    assert all(distance(one, other) < limit for one, other, limit in zip(ours, found, LIMITS, strict=True))
    assert distance(ours[0], found[0]) > 1e-3  # it did compute in 8 bits


@pytest.mark.parametrize(("rows", "dtype"), [(7, torch.bfloat16), (16, torch.float32)])
def test_other_sizes_and_types_are_computed_as_ever(rows: int, dtype: torch.dtype) -> None:
    plain = nn.Linear(32, 32).to(dtype)
    tokens = torch.randn(rows, 32, dtype=dtype)
    assert torch.equal(Fp8Linear.of(plain)(tokens), plain(tokens))
    assert torch.equal(without_bias(Fp8Linear.of(plain), tokens), F.linear(tokens, plain.weight))


class Layouts(TorchDispatchMode):
    """Notes the strides of both factors of each product in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._scaled_mm.default:
            self.seen.append((args[0].stride(), args[1].stride()))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("turned", [False, True])
def test_products_have_the_layouts_that_a_gpu_takes(turned: bool) -> None:
    """The first factor lies row by row, the second column by column; a CPU would take any."""
    layer, tokens, grad = Fp8Linear(64, 96), torch.randn(32, 64), torch.randn(32, 96).bfloat16()
    if turned:
        tokens, grad = (one.t().contiguous().t() for one in (tokens, grad))
    with Layouts() as layouts, torch.autocast("cpu", torch.bfloat16):
        layer(tokens.requires_grad_()).backward(grad)
    assert layouts.seen == [((64, 1), (1, 64)), ((96, 1), (1, 96)), ((32, 1), (1, 32))]


def test_a_product_without_its_bias() -> None:
    layer, tokens = Fp8Linear(32, 48).bfloat16(), torch.randn(16, 32).bfloat16()
    assert torch.equal(without_bias(layer, tokens) + layer.bias, layer(tokens))


def test_blocks_alone_change_and_tensors_keep_their_names() -> None:
    model = create("vit32_small", image_size=16, dim=32, depth=2, num_heads=2)
    before = model.state_dict()
    changed = {path for path, module in use_fp8(model).named_modules() if isinstance(module, Fp8Linear)}
    assert changed == {f"blocks.{number}.{name}" for number in range(2) for name in (
        "attention.qkv", "attention.projection", "mlp.fc1", "mlp.fc2"
    )}  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_learns_as_a_plain_model_does() -> None:
    """The last losses of 30 steps on 32 images."""
    losses = {}
    for name in ("plain", "fp8"):
        torch.manual_seed(0)
        model = create("vit32_small", image_size=16, dim=32, depth=2, num_heads=2, num_classes=4, dropout=0.0)
        model = use_fp8(model) if name == "fp8" else model
        images, labels = torch.randn(32, 3, 16, 16), torch.arange(32) % 4
        optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(30):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(images).float(), labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        losses[name] = loss.item()
    assert losses["plain"] < 0.5
    assert losses["plain"] != losses["fp8"]
    assert losses["fp8"] < 0.5
