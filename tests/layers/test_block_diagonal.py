"""Block-diagonal attention: blocks do not attend to each other, also where they are cut off at the border."""

import torch
from support.registered import randomise

from vitrail.layers.attention import BlockDiagonalConfig, Site, SoftmaxConfig


def test_each_block_is_softmax_attention_of_its_own():
    site = Site(dim=16, num_heads=2, grid=(5, 7))
    layer = randomise(BlockDiagonalConfig(size=(2, 3)).build(site)).double()
    dense = SoftmaxConfig().build(site).double()
    dense.load_state_dict(layer.state_dict())
    tokens = torch.randn(2, 35, 16).double()
    mixed, maps = layer(tokens, (5, 7)).unflatten(1, (5, 7)), tokens.unflatten(1, (5, 7))
    for y in range(0, 5, 2):
        for x in range(0, 7, 3):
            part = maps[:, y : y + 2, x : x + 3]  # the last row and the last column of blocks are smaller
            expected = dense(part.flatten(1, 2), (part.shape[1], part.shape[2]))
            torch.testing.assert_close(mixed[:, y : y + 2, x : x + 3].flatten(1, 2), expected)


def test_where_blocks_divide_the_grid_nothing_is_masked():
    layer = BlockDiagonalConfig(size=(2, 3)).build(Site(dim=16, num_heads=2, grid=(4, 6)))
    assert layer.tiles.seen0 is None
    assert layer.tiles.seen1 is None


def test_the_matrix_is_block_diagonal():
    layer = randomise(BlockDiagonalConfig(size=(1, 2)).build(Site(dim=8, num_heads=1, grid=(2, 4))))
    seen = layer.weights(torch.randn(1, 8, 8), (2, 4))[0, 0] > 0
    assert torch.equal(seen, torch.block_diag(*[torch.ones(2, 2)] * 4).bool())
