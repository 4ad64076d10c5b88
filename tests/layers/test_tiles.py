"""Sparse attention by tiles equals dense attention with a mask, at a fraction of the cost."""

import copy

import pytest
import torch
from support.registered import randomise
from support.scaling import cost, growth
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.layers.attention import (
    BlockDiagonalConfig,
    DilatedConfig,
    LocalConfig,
    NeighbourhoodConfig,
    Site,
    SoftmaxConfig,
)

SPARSE = {
    "local": LocalConfig(size=(3, 5)),
    "neighbourhood": NeighbourhoodConfig(size=(5, 3)),
    "dilated": DilatedConfig(size=(3, 3), dilation=(2, 3)),
    "block_diagonal": BlockDiagonalConfig(size=(4, 3)),
}
every_kind = pytest.mark.parametrize("kind", SPARSE)
GRIDS = [(1, 1), (1, 9), (2, 3), (8, 8), (9, 7), (17, 10), (3, 20)]


@every_kind
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid[0]}x{grid[1]}")
@pytest.mark.parametrize("prefix", [0, 2])
def test_forward_is_what_the_weights_say(kind, grid, prefix):
    layer = randomise(SPARSE[kind].build(Site(dim=16, num_heads=2, grid=grid, num_prefix=prefix))).double()
    tokens = torch.randn(2, prefix + grid[0] * grid[1], 16).double()
    mixed = layer.joined(layer.weights(tokens, grid) @ layer.heads(tokens)[2])
    torch.testing.assert_close(layer(tokens, grid), mixed)


@every_kind
def test_the_prefix_sees_all_and_is_seen_by_all(kind):
    layer = randomise(SPARSE[kind].build(Site(dim=16, num_heads=2, grid=(9, 9), num_prefix=2)))
    weights = layer.weights(torch.randn(1, 83, 16), (9, 9))
    assert (weights[:, :, :2] > 0).all()
    assert (weights[:, :, :, :2] > 0).all()
    assert (weights[:, :, 2:, 2:] == 0).any(dim=-1).all()


@every_kind
def test_a_window_over_the_whole_grid_is_softmax_attention(kind):
    site = Site(dim=16, num_heads=2, grid=(5, 4), num_prefix=1)
    whole = {"dilated": DilatedConfig(size=(5, 5), dilation=(1, 1)), "local": LocalConfig(size=(9, 7))}
    config = whole.get(kind, type(SPARSE[kind])(size=(5, 5)))
    exact = randomise(SoftmaxConfig().build(site)).double()
    layer = config.build(site).double()
    layer.load_state_dict(exact.state_dict(), strict=True)  # tables are no part of the weights
    tokens = torch.randn(2, 21, 16).double()
    torch.testing.assert_close(layer(tokens, (5, 4)), exact(tokens, (5, 4)))
    assert layer.tiles.seen0 is None
    assert layer.tiles.seen1 is None


@every_kind
@pytest.mark.parametrize("prefix", [0, 2])
def test_all_tiles_go_through_one_fused_kernel(kind, prefix):
    layer = SPARSE[kind].build(Site(dim=16, num_heads=2, grid=(17, 10), num_prefix=prefix)).eval()
    with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises where it cannot be used
        layer(torch.randn(2, prefix + 170, 16), (17, 10))


@every_kind
def test_tables_follow_the_grid(kind):
    layer = randomise(SPARSE[kind].build(Site(dim=16, num_heads=2, grid=(9, 7))))
    twin = copy.deepcopy(layer)
    twin.tiles.resize((5, 12))
    tokens = torch.randn(2, 60, 16)
    torch.testing.assert_close(twin(tokens, (5, 12)), layer(tokens, (5, 12)))
    with torch.device("meta"):
        blank = SPARSE[kind].build(Site(dim=16, num_heads=2, grid=(9, 7)))
    blank.load_state_dict(layer.state_dict(), assign=True)
    blank.tiles.reset_tables(layer.qkv.weight)
    tokens = torch.randn(2, 63, 16)
    torch.testing.assert_close(blank(tokens, (9, 7)), layer(tokens, (9, 7)))


@every_kind
def test_cost_is_linear_and_far_below_dense(kind):
    config = type(SPARSE[kind])()
    assert max(growth(config)) < 4.8  # tiles at the border see less than others: a little more than 4
    assert cost(config, 64)[0] < cost(SoftmaxConfig(), 64)[0] / 10
