"""Linear layers in 8 bits: close to those in 32, in all gradients; they learn; the model stays the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.eight_bits import needs_products
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.errors import ConfigError, Unsupported
from vitrail.layers import fp8
from vitrail.layers.fp8 import KIND, LEAST, Fp8Linear, FrozenFp8Linear, Rows, freeze, takes_rows, use_fp8, without_bias
from vitrail.layers.lora import add_lora
from vitrail.models.checkpoint import save
from vitrail.models.registry import create

LIMIT = 0.04  # 3 bits of mantissa round by 1/16 at most, two factors by 0.037 in the mean
STEP = 2**-8  # bfloat16 rounds by so much


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def uneven(*shape: int) -> torch.Tensor:
    """Rows of very different size, from 1/1000 to 1000."""
    sizes = torch.logspace(-3, 3, shape[0])[torch.randperm(shape[0])]
    return torch.randn(shape) * sizes.view(-1, *[1] * (len(shape) - 1))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e4])
def test_each_row_uses_the_whole_range(scale: float) -> None:
    values = uneven(64, 48) * scale
    found = Rows.of(values)
    assert (found.values.dtype, found.scale.shape, found.scale.dtype) == (KIND, (64, 1), torch.float32)
    assert found.values.float().abs().amax(dim=1).eq(448).all()
    error = (found.values.float() * found.scale - values).norm(dim=1) / values.norm(dim=1)
    assert error.max() < 0.04
    zeros = Rows.of(torch.zeros(16, 16))
    assert not zeros.values.float().any()
    assert zeros.scale.eq(torch.tensor(LEAST) / 448).all()


def test_what_is_not_finite_stays_so() -> None:
    values = torch.ones(3, 16)
    values[0, 3], values[1, 5] = torch.inf, torch.nan
    found = Rows.of(values)
    product = found.values.float() * found.scale
    assert not product[0].isfinite().all()
    assert not product[1].isfinite().all()
    assert product[2].eq(1).all()


def gradients(layer: nn.Module, plain: nn.Linear, tokens: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of tokens, weight and bias, under autocast."""
    leaf = tokens.clone().requires_grad_()
    plain.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(leaf)
    out.backward(grad.to(out.dtype))
    return [out.detach(), leaf.grad, plain.weight.grad.clone(), plain.bias.grad.clone()]  # type: ignore[list-item,union-attr]


def in_double(plain: nn.Linear, tokens: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    leaves = [one.detach().double().requires_grad_() for one in (tokens, plain.weight, plain.bias)]
    out = F.linear(*leaves)
    out.backward(grad.double())
    return [out.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[list-item]


@needs_products
def test_output_and_gradients_are_near_those_in_float64() -> None:
    """Those of weight and bias are as near as in bfloat16, and types are those of a plain layer."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 96)
    tokens, grad = torch.randn(4, 7, 64), torch.randn(4, 7, 96)
    layer = Fp8Linear.of(plain)
    assert layer.weight is plain.weight
    found, exact = gradients(layer, plain, tokens, grad), in_double(plain, tokens, grad)
    for one, other, limit in zip(found, exact, (LIMIT, LIMIT, STEP, STEP), strict=True):
        assert distance(one, other) < limit
    assert distance(found[0], exact[0]) > 1e-2  # it did compute in 8 bits
    for one, usual in zip(found, gradients(plain, plain, tokens, grad), strict=True):
        assert (one.dtype, one.stride()) == (usual.dtype, usual.stride())


@needs_products
def test_rows_of_very_different_size_keep_their_digits() -> None:
    """With one scale for all, small rows become zero."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 96)
    tokens, grad = uneven(28, 64), uneven(28, 96)
    nn.init.zeros_(plain.bias)
    exact = in_double(plain, tokens, grad)
    found = gradients(Fp8Linear.of(plain), plain, tokens, grad)
    at, of = tokens.norm(dim=1).argmin(), grad.norm(dim=1).argmin()
    assert distance(found[0][at], exact[0][at]) < 2 * LIMIT
    assert distance(found[1][of], exact[1][of]) < 2 * LIMIT
    scale = tokens.abs().max() / 448
    at_once = (tokens / scale).to(KIND).double() * scale
    assert distance(at_once[at] @ plain.weight.detach().double().t(), exact[0][at]) > 0.5


@pytest.mark.parametrize(("widths", "dtype"), [((32, 24), torch.bfloat16), ((32, 32), torch.float32)])
def test_other_widths_and_types_are_computed_as_ever(widths: tuple[int, int], dtype: torch.dtype) -> None:
    plain = nn.Linear(*widths).to(dtype)
    tokens = torch.randn(7, widths[0], dtype=dtype)
    layer = Fp8Linear.of(plain)
    assert not takes_rows(layer, tokens)
    assert torch.equal(layer(tokens), plain(tokens))
    assert torch.equal(without_bias(layer, tokens), F.linear(tokens, plain.weight))


@needs_products
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of the compiler itself
def test_compiled_it_computes_the_same() -> None:
    """In one graph; products on a CPU differ in the last bit of bfloat16."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 96)
    layer, tokens, grad = Fp8Linear.of(plain), torch.randn(3, 5, 64), torch.randn(3, 5, 96)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for one, other in zip(gradients(compiled, plain, tokens, grad), gradients(layer, plain, tokens, grad), strict=True):
        assert distance(one, other) < STEP


class Layouts(TorchDispatchMode):
    """Notes the strides of both factors and the shapes of their scales in each product in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._scaled_mm.default:
            scales = args[2:4]
            assert all(one.is_contiguous() and one.dtype == torch.float32 for one in scales)
            self.seen.append((args[0].stride(), args[1].stride(), *(tuple(one.shape) for one in scales)))
        return function(*args, **(kwargs or {}))


@needs_products
@pytest.mark.parametrize("turned", [False, True])
def test_products_have_the_layouts_that_a_gpu_takes(turned: bool) -> None:
    """The first factor lies row by row, the second column by column; a CPU would take any."""
    layer, tokens, grad = Fp8Linear(64, 96), torch.randn(20, 64), torch.randn(20, 96).bfloat16()
    if turned:
        tokens, grad = (one.t().contiguous().t() for one in (tokens, grad))
    with Layouts() as layouts, torch.autocast("cpu", torch.bfloat16):
        layer(tokens.requires_grad_()).backward(grad)
    assert layouts.seen == [((64, 1), (1, 64), (20, 1), (1, 96)), ((96, 1), (1, 96), (20, 1), (1, 64))]


@pytest.mark.parametrize("tokens", [1, 20])
def test_torch_takes_the_products_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Its rules for a GPU, on tensors without numbers; gradients may lie column by column."""
    monkeypatch.setattr(fp8, "_INSTALLED", False)  # kernels need numbers
    half = {"device": "cuda", "dtype": torch.bfloat16}
    with FakeTensorMode():
        rows, weight = Rows.of(torch.empty(tokens, 1, 64, **half)).flat(), torch.empty(96, 64, device="cuda")
        found = rows.times(Rows.of(weight), torch.bfloat16, torch.empty(96, device="cuda"), fast=True)
        assert found.shape == (tokens, 96)
        grad = torch.empty_strided((tokens, 96), (1, tokens), **half)
        assert Rows.of(grad).times(Rows.of(weight.t()), torch.bfloat16, fast=False).shape == (tokens, 64)


@needs_products
def test_a_product_without_its_bias() -> None:
    layer, tokens = Fp8Linear(32, 48).bfloat16(), torch.randn(16, 32).bfloat16()
    for one in (layer, FrozenFp8Linear(layer)):
        assert torch.equal(without_bias(one, tokens, Rows.of(tokens)), without_bias(one, tokens))
        assert distance(without_bias(one, tokens) + layer.bias, one(tokens)) < STEP


@needs_products
@pytest.mark.parametrize("biased", [True, False])
def test_frozen_weights_compute_what_rounding_in_each_pass_does(biased: bool) -> None:
    plain = nn.Linear(48, 32, bias=biased)
    tokens = torch.randn(2, 5, 48).bfloat16()
    frozen = FrozenFp8Linear(plain)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(frozen(tokens), Fp8Linear.of(plain)(tokens))
    assert frozen(tokens.float()).dtype == torch.bfloat16
    assert takes_rows(frozen, tokens)


@needs_products
def test_a_frozen_model_is_near_the_one_it_was_made_from() -> None:
    """All of it has 16 or 8 bits; where widths do not fit, linear maps stay as they are."""
    torch.manual_seed(0)
    model = create("vit32_small", image_size=16, dim=32, depth=2, num_heads=2, mlp={"hidden": 40}).eval()
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        expected = model(images)
        found = freeze(model)(images.bfloat16())
    assert {one.dtype for one in model.state_dict().values()} == {torch.bfloat16, torch.float32, KIND}
    frozen = {path for path, one in model.named_modules() if isinstance(one, FrozenFp8Linear)}
    assert frozen == {f"blocks.{at}.attention.{name}" for at in range(2) for name in ("qkv", "projection")}
    assert type(model.get_submodule("blocks.0.mlp.fc1")) is nn.Linear
    assert distance(found, expected) < 0.1


@pytest.mark.parametrize("name", ["caformer_s18", "swinv2_tiny_window8", "pvt_tiny", "vit_tiny_patch16"])
def test_only_maps_of_blocks_change(name: str) -> None:
    """Not those of a head, of pooling, or of a table of relative positions."""
    with torch.device("meta"):
        model = use_fp8(create(name, num_classes=32))
    changed = [path for path, module in model.named_modules() if isinstance(module, Fp8Linear)]
    assert changed
    assert not [path for path in changed if path.startswith(("head", "pool")) or "relative" in path]


@pytest.mark.parametrize("change", [use_fp8, freeze])
def test_a_model_in_which_nothing_changes_is_refused(change: Callable[[nn.Module], nn.Module]) -> None:
    low_rank = create("vit32_small", image_size=16, dim=32, depth=1, num_heads=2)
    add_lora(low_rank, rank=2)
    for model in (low_rank, create("resnet18", image_size=32)):
        with pytest.raises(Unsupported, match="fp8"):
            change(model)


def test_rounded_weights_keep_their_types_and_have_no_gradients() -> None:
    layer = FrozenFp8Linear(nn.Linear(16, 32))
    assert {one.dtype for one in layer.to(torch.bfloat16).double().state_dict().values()} == {
        KIND, torch.float32, torch.bfloat16
    }  # fmt: skip
    with pytest.raises(Unsupported, match="gradients"):
        layer(torch.randn(2, 16, requires_grad=True))


def test_a_model_with_rounded_weights_is_not_saved(tmp_path: Path) -> None:
    model = freeze(create("vit32_small", image_size=16, dim=32, depth=1, num_heads=2))
    with pytest.raises(ConfigError, match="saved"):
        save(model, tmp_path)


@needs_products
def test_what_is_frozen_gets_no_gradient() -> None:
    layer, tokens = Fp8Linear(32, 48).bfloat16(), torch.randn(16, 32).bfloat16().requires_grad_()
    layer.weight.requires_grad_(False)
    layer(tokens).sum().backward()
    assert layer.weight.grad is None
    assert tokens.grad is not None
    assert layer.bias.grad is not None


def test_blocks_alone_change_and_tensors_keep_their_names() -> None:
    model = create("vit32_small", image_size=16, dim=32, depth=2, num_heads=2)
    before = model.state_dict()
    changed = {path for path, module in use_fp8(model).named_modules() if isinstance(module, Fp8Linear)}
    assert changed == {f"blocks.{number}.{name}" for number in range(2) for name in (
        "attention.qkv", "attention.projection", "mlp.fc1", "mlp.fc2"
    )}  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@needs_products
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
