"""Operators with kernels: shapes and gradients, compiled and not, in the layers; when layers do not use them."""

import pytest
import torch
from support.eight_bits import needs_products
from support.on_cpu import operators_on_cpu
from support.registered import randomise
from torch import nn

from vitrail.layers import joined_heads, kernels
from vitrail.layers.attention import MultiScaleDeformableAttention, Site, SoftmaxConfig, WindowConfig
from vitrail.layers.fp8 import Fp8Linear, FrozenFp8Linear, use_fp8
from vitrail.layers.lora import LoRALinear
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.norm import LayerNormConfig

GRID, DIM = (4, 6), 32


@pytest.fixture
def on_cpu(monkeypatch):
    with operators_on_cpu(monkeypatch) as calls:
        yield calls


def window_layer(**options):
    torch.manual_seed(0)
    return WindowConfig(size=(2, 3), **options).build(Site(DIM, 2, GRID, block=1))


def softmax_layer(**options):
    torch.manual_seed(0)
    return SoftmaxConfig(**options).build(Site(DIM, 2, GRID))


class DeformableLayer(nn.Module):
    """Queries at the tokens of one level, the last of which are padding."""

    def __init__(self, num_heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.inner = randomise(MultiScaleDeformableAttention(DIM, num_heads, levels=1, points=3))

    def forward(self, tokens, grid):
        references = torch.linspace(-0.1, 1.1, 2 * tokens.shape[1]).view(1, -1, 1, 2).expand(len(tokens), -1, -1, -1)
        padding = torch.arange(tokens.shape[1]).expand(len(tokens), -1) > 20
        return self.inner(tokens, references, tokens, [grid], padding)


def mlp_layer(dropout=0.0, **options):
    torch.manual_seed(0)
    return GeluMLPConfig(**options).build(DIM, norm=LayerNormConfig(), dropout=dropout)


def trained(layer, *, compiled=False):
    """The output and the gradient of every parameter."""
    torch.manual_seed(1)
    tokens = torch.randn(2, GRID[0] * GRID[1], DIM)
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    out = run(tokens, GRID)
    layer.zero_grad()
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("build", [window_layer, softmax_layer, mlp_layer, DeformableLayer])
def test_a_layer_computes_the_same_with_the_kernel(on_cpu, monkeypatch, build, compiled):
    found = trained(build(), compiled=compiled)
    assert len(on_cpu) == 2  # forward and backward
    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "suits", lambda _: False)
    for one, expected in zip(found, trained(build()), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"head_dim": 8}], ids=str)
def test_gradients_of_heads_are_joined_by_the_kernel(on_cpu, monkeypatch, options, compiled):
    """Where no kernel has the whole of attention."""
    monkeypatch.setattr(kernels, "SHORT", 0)
    monkeypatch.setattr(joined_heads, "JOINED", True)
    found = trained(softmax_layer(**options), compiled=compiled)
    assert on_cpu == ["join_heads"]
    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "suits", lambda _: False)
    for one, expected in zip(found, trained(softmax_layer(**options)), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_heads_are_not_joined_where_the_bias_is_not_plain(on_cpu, monkeypatch):
    monkeypatch.setattr(kernels, "SHORT", 0)
    monkeypatch.setattr(joined_heads, "JOINED", True)
    hooked = softmax_layer()
    hooked.qkv.register_forward_hook(lambda *_: None)
    for layer in (softmax_layer(bias="qv"), softmax_layer(bias="none"), hooked):
        trained(layer)
    assert on_cpu == []


def in_half(layer, *, compiled=False):
    """The output and all gradients under autocast to bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return trained(layer, compiled=compiled)


@needs_products
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_gelu_in_8_bits_go_to_the_second_layer(on_cpu, monkeypatch, compiled):
    found = in_half(use_fp8(mlp_layer()), compiled=compiled)
    assert on_cpu == ["bias_gelu_rows", "bias_gelu_backward"]
    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "suits", lambda _: False)
    for one, expected in zip(found, in_half(use_fp8(mlp_layer())), strict=True):
        assert (one - expected).norm() < 0.02 * expected.norm()


@needs_products
def test_frozen_layers_take_rows_and_keep_nothing_else(on_cpu, monkeypatch):
    layer = mlp_layer()
    for name in ("fc1", "fc2"):
        layer.set_submodule(name, FrozenFp8Linear(layer.get_submodule(name)))
    tokens = torch.randn(2, GRID[0] * GRID[1], DIM).bfloat16()
    with torch.no_grad():
        found = layer.eval()(tokens, GRID)
    assert on_cpu == ["bias_gelu_rows"]
    monkeypatch.setattr(kernels, "suits", lambda _: False)
    expected = layer(tokens, GRID)
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.02 * expected.norm()


@needs_products
def test_rows_are_not_used_where_something_stands_between_the_layers(on_cpu):
    tokens = torch.randn(1, 24, DIM).bfloat16()
    for layer in (mlp_layer(inner_norm=True), mlp_layer(dropout=0.5)):
        in_between = use_fp8(layer.train()).bfloat16()
        in_between(tokens, GRID)
        assert "bias_gelu_rows" not in on_cpu
    layer = use_fp8(mlp_layer()).bfloat16()
    layer.fc2.register_forward_hook(lambda *_: None)
    layer(tokens, GRID)
    assert "bias_gelu_rows" not in on_cpu
    assert isinstance(layer.fc2, Fp8Linear)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("build", [softmax_layer, mlp_layer])
def test_dropout_is_the_kernels(on_cpu, build, compiled):
    """Both passes get the same random numbers; others in the next step, none in evaluation."""
    layer = build(dropout=0.4)
    layer.train()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    torch.manual_seed(1)
    tokens = torch.randn(2, GRID[0] * GRID[1], DIM, requires_grad=True)

    def step():
        torch.manual_seed(2)
        out = run(tokens, GRID)
        out.sum().backward()
        return out.detach()

    first = step()
    assert torch.equal(first, step())
    assert len(on_cpu) == 4
    torch.manual_seed(3)
    assert not torch.equal(first, run(tokens, GRID))
    small = 1e-2 * torch.randn_like(tokens)
    torch.manual_seed(2)
    with torch.no_grad():
        beyond = run(tokens + small, GRID)
    slope = (tokens.grad / 2 * small).sum()
    torch.testing.assert_close((beyond - first).sum(), slope, rtol=0.05, atol=1e-2)
    layer.eval()
    assert torch.equal(layer(tokens, GRID), layer(tokens, GRID))


@pytest.mark.parametrize(
    "build",
    [
        lambda: window_layer(cosine=True),
        lambda: mlp_layer(activation="gelu_tanh"),
        lambda: softmax_layer(qk_norm=True),
        lambda: softmax_layer(fused=False),
        lambda: DeformableLayer(num_heads=8),
    ],
    ids=["cosine", "tanh", "qk_norm", "explicit", "heads of 4"],
)
def test_a_layer_that_the_kernel_does_not_fit_does_not_call_it(on_cpu, build):
    build().train()(torch.randn(1, GRID[0] * GRID[1], DIM), GRID)
    assert on_cpu == []


def test_padded_windows_and_prefix_tokens_do_not_use_the_kernel(on_cpu):
    layer = window_layer()
    layer(torch.randn(1, 35, DIM), (5, 7))
    layer(torch.randn(1, 1 + GRID[0] * GRID[1], DIM), GRID)
    assert on_cpu == []


def test_linear_layers_with_hooks_or_lora_are_called(on_cpu):
    layer, seen = mlp_layer(), []
    hook = layer.fc1.register_forward_hook(lambda *_: seen.append("fc1"))
    tokens = torch.randn(1, 24, DIM)
    layer(tokens, GRID)
    assert (seen, on_cpu) == (["fc1"], [])
    hook.remove()
    layer.fc1 = LoRALinear(layer.fc1, rank=2, alpha=2.0)
    layer(tokens, GRID)
    assert on_cpu == []


def test_deterministic_algorithms_do_not_use_atomic_additions(on_cpu):
    layer, tokens = DeformableLayer(), torch.randn(1, 24, DIM)
    torch.use_deterministic_algorithms(True)
    try:
        layer(tokens, GRID)
    finally:
        torch.use_deterministic_algorithms(False)
    assert on_cpu == []
    layer(tokens, GRID)
    assert on_cpu == ["sample_levels"]


def test_small_inputs_use_the_plain_gelu(on_cpu, monkeypatch):
    monkeypatch.setattr(kernels, "LARGE", 1 << 22)
    mlp_layer()(torch.randn(1, 24, DIM), GRID)
    assert on_cpu == []


def test_cpu_tensors_do_not_suit():
    assert not kernels.suits(torch.randn(2, dtype=torch.bfloat16))


def test_exported_programs_have_plain_operators_only(monkeypatch):
    monkeypatch.setattr(kernels, "suits", lambda _: not kernels.exporting())
    layer = window_layer()
    program = torch.export.export(layer, (torch.randn(1, 24, DIM), GRID), strict=False)
    assert "vitrail" not in str(program.graph)
    assert not kernels.exporting()
    compiled = torch.compile(lambda x: x + kernels.exporting(), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 0.0


def test_shapes_are_known_without_a_kernel():
    x, bias = torch.empty(2, 3, 8, device="meta"), torch.empty(8, device="meta")
    assert torch.ops.vitrail.bias_gelu(x, bias).shape == (2, 3, 8)
    out, rows = kernels.bias_gelu_rows(x, bias)
    assert (out.shape, rows.values.shape, rows.scale.shape) == ((2, 3, 8), (2, 3, 8), (2, 3, 1))
    assert rows.values.dtype == torch.float8_e4m3fn
    qkv = torch.empty(2, 24, 96, device="meta")
    options = {"num_heads": 2, "grid": GRID, "size": (2, 3), "shift": (0, 0), "scale": 1.0}
    assert kernels.window_attention(qkv, None, **options).shape == (2, 24, 32)
    values, points = torch.empty(2, 24, 4, 8, device="meta"), torch.empty(2, 5, 4, 1, 3, 2, device="meta")
    assert kernels.sample_levels(values, points, points[..., 0], [GRID]).shape == (2, 5, 4, 8)


def test_plain_linear_layers():
    assert kernels.plain(nn.Linear(2, 2))
    assert not kernels.plain(nn.Identity())
