"""Attention by rows and by strips equals attention in one step: forward, backward, compiled and exported."""

import pytest
import torch
from support.registered import randomise
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.layers.attention import BiasedConfig, DeformableConfig, Site, SoftmaxConfig, SubsampledAttention, by_rows
from vitrail.layers.relative import RelativeConfig

GRID = (5, 3)
CONFIGS = {
    "biased": BiasedConfig(),
    "narrow": BiasedConfig(value_ratio=0.5),
    "relative": SoftmaxConfig(),
    "deformable": DeformableConfig(),
    "fewer": DeformableConfig(stride=2, groups=2),
}
STRIPS = ("biased", "narrow", "relative")
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def layer_of(config, prefix=0, grid=GRID, dim=16):
    positions = (RelativeConfig(),) if isinstance(config, SoftmaxConfig) else ()
    return randomise(config.build(Site(dim=dim, num_heads=2, grid=grid, num_prefix=prefix, positions=positions)))


def layer_and_tokens(config, prefix=1, grid=GRID):
    layer = layer_of(config, prefix, grid).eval()
    return layer, torch.randn(2, prefix + grid[0] * grid[1], 16, requires_grad=True)


def outcome(layer, tokens, grid=GRID):
    """The output and the gradients of tokens and parameters."""
    mixed = layer(tokens, grid)
    return mixed, *torch.autograd.grad(mixed.square().sum(), [tokens, *layer.parameters()])


@pytest.fixture
def count(monkeypatch):
    """Sets the number of pairs per step: 1 means one row per step; maps are never tall enough for strips."""

    def set_pairs(pairs):
        for name, value in (("PAIRS", pairs), ("FEW", 0), ("TALL", 10**6)):
            monkeypatch.setattr(by_rows, name, value)

    return set_pairs


@pytest.fixture
def in_place(monkeypatch):
    """Makes every map tall enough for the kernel to read its bias from the strips."""
    monkeypatch.setattr(by_rows, "TALL", 1)


@every_config
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("pairs", [1, 100])
def test_pieces_are_the_whole(config, prefix, pairs, count):
    layer, tokens = layer_and_tokens(config, prefix)
    layer, tokens = layer.double(), tokens.detach().double().requires_grad_()
    whole = outcome(layer, tokens)
    count(pairs)
    for found, expected in zip(outcome(layer, tokens), whole, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


def test_fewer_queries_come_in_pieces_too(count):
    layer = randomise(SubsampledAttention(6, 8, grid=(7, 5), num_heads=1, head_dim=3)).double().eval()
    maps = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    whole = layer(maps)
    count(1)
    torch.testing.assert_close(layer(maps), whole, atol=1e-12, rtol=1e-12)


@every_config
def test_the_backward_pass_keeps_no_matrix_of_all_pairs(config, count):
    grid, sizes = (16, 16), []
    layer = layer_of(config, grid=grid, dim=8)
    every_pair = (
        2 * layer.weights(torch.randn(1, 256, 8), grid).numel() // (config.stride**2 if "stride" in vars(config) else 1)
    )

    def largest(pairs):
        count(pairs)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept
        ):
            layer(torch.randn(2, 256, 8), grid)
        return max(sizes.pop() for _ in range(len(sizes)))

    assert largest(256 * 256) >= every_pair
    assert largest(1) < every_pair / 4


def test_pieces_compile(count):
    count(1)
    layer, tokens = layer_and_tokens(CONFIGS["biased"], prefix=0, grid=(2, 3))
    expected = outcome(layer, tokens, (2, 3))
    torch._dynamo.reset()
    found = outcome(torch.compile(layer, fullgraph=True, backend="aot_eager"), tokens, (2, 3))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_pieces_export_with_any_batch(count):
    count(1)
    layer, tokens = layer_and_tokens(CONFIGS["fewer"], grid=(2, 3))
    shapes = ({0: torch.export.Dim("batch")}, (None, None))
    program = torch.export.export(layer, (tokens.detach(), (2, 3)), dynamic_shapes=shapes, strict=False).module()
    more = torch.randn(3, 7, 16)
    torch.testing.assert_close(program(more, (2, 3)), layer(more, (2, 3)))


@pytest.mark.parametrize("name", STRIPS)
@pytest.mark.parametrize("prefix", [0, 1, 3])
@torch.no_grad()
def test_a_bias_read_in_place_is_the_bias(name, prefix, monkeypatch):
    layer, tokens = layer_and_tokens(CONFIGS[name], prefix)
    layer, tokens = layer.double(), tokens.double()
    expected = layer(tokens, GRID)
    monkeypatch.setattr(by_rows, "TALL", GRID[0])
    torch.testing.assert_close(layer(tokens, GRID), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.usefixtures("in_place")
@torch.no_grad()
def test_fewer_queries_read_in_place_too(monkeypatch):
    layer = randomise(SubsampledAttention(6, 8, grid=(7, 5), num_heads=2, head_dim=3)).double().eval()
    maps = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    found = layer(maps)
    monkeypatch.setattr(by_rows, "TALL", 10**6)
    torch.testing.assert_close(found, layer(maps), atol=1e-12, rtol=1e-12)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("name", STRIPS)
@torch.no_grad()
def test_bfloat16_is_near_in_place(name):
    layer, tokens = layer_and_tokens(CONFIGS[name])
    expected = layer(tokens, GRID)
    low = layer.bfloat16()(tokens.bfloat16(), GRID)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0.1)


@pytest.mark.usefixtures("in_place")
@torch.no_grad()
def test_in_place_compiles():
    layer, tokens = layer_and_tokens(CONFIGS["relative"])
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens, GRID), layer(tokens, GRID))


class LargestStorage(TorchDispatchMode):
    """Records the largest storage of a tensor; a view has the storage of its base."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("name", STRIPS)
@torch.no_grad()
def test_a_tall_map_never_has_a_matrix_of_all_pairs(name):
    found = []
    for side in (28, 56):
        layer, tokens = layer_and_tokens(CONFIGS[name], grid=(side, side))
        with LargestStorage() as largest:
            layer(tokens[:1], (side, side))
        found.append(largest.bytes)
        assert largest.bytes < 4 * 2 * side**4 / 4  # two heads of float32, all pairs
    assert found[1] < 9 * found[0]  # N sqrt(N); all pairs would be 16 times as many
