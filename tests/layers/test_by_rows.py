"""Attention by rows of the map: the same in pieces as in one, forward, backward, compiled and exported."""

import pytest
import torch
from registered import randomise

from vitrail.layers.attention import BiasedConfig, DeformableConfig, Site, SubsampledAttention, by_rows

GRID = (5, 3)
CONFIGS = {
    "biased": BiasedConfig(),
    "narrow": BiasedConfig(value_ratio=0.5),
    "deformable": DeformableConfig(),
    "fewer": DeformableConfig(stride=2, groups=2),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def layer_and_tokens(config, prefix=1, grid=GRID):
    layer = randomise(config.build(Site(dim=16, num_heads=2, grid=grid, num_prefix=prefix))).eval()
    return layer, torch.randn(2, prefix + grid[0] * grid[1], 16, requires_grad=True)


def outcome(layer, tokens, grid=GRID):
    """The output and the gradients of tokens and parameters."""
    mixed = layer(tokens, grid)
    return mixed, *torch.autograd.grad(mixed.square().sum(), [tokens, *layer.parameters()])


@pytest.fixture
def count(monkeypatch):
    """Sets how many pairs are done at a time: 1 makes a step of each row."""
    return lambda pairs: monkeypatch.setattr(by_rows, "PAIRS", pairs)


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
    layer = randomise(config.build(Site(dim=8, num_heads=2, grid=grid)))
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


@pytest.mark.parametrize("name", ["biased", "fewer"])
def test_pieces_compile(name, count):
    count(1)
    layer, tokens = layer_and_tokens(CONFIGS[name], grid=(2, 3))
    expected = outcome(layer, tokens, (2, 3))
    torch._dynamo.reset()
    found = outcome(torch.compile(layer, fullgraph=True, backend="aot_eager"), tokens, (2, 3))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_pieces_export_with_any_batch(count):
    count(1)
    layer, tokens = layer_and_tokens(CONFIGS["fewer"], grid=(2, 3))
    shapes = ({0: torch.export.Dim("batch")}, (None, None))
    program = torch.export.export(layer, (tokens.detach(), (2, 3)), dynamic_shapes=shapes, strict=True).module()
    more = torch.randn(3, 7, 16)
    torch.testing.assert_close(program(more, (2, 3)), layer(more, (2, 3)))
