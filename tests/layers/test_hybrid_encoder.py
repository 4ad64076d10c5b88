"""RT-DETR's encoder: shapes of any size, levels that see one another, positions."""

import torch

from vitrail.layers.hybrid_encoder import CspLayer, HybridEncoder, RepBlock, counted_position


def test_levels_keep_their_shapes_and_see_each_other():
    torch.manual_seed(0)
    encoder = HybridEncoder(16, levels=3, depth=1, num_heads=2, hidden=24, expansion=0.5).eval()
    levels = [torch.randn(2, 16, *size) for size in ((12, 9), (6, 5), (3, 3))]
    found = encoder(levels)
    assert [tuple(level.shape) for level in found] == [tuple(level.shape) for level in levels]
    for index in range(3):
        changed = [level + (at == index) for at, level in enumerate(levels)]
        for before, after in zip(found, encoder(changed), strict=True):
            assert not torch.allclose(before, after)


def test_blocks():
    assert RepBlock(8)(torch.randn(2, 8, 4, 4)).shape == (2, 8, 4, 4)
    assert CspLayer(8, 4)(torch.randn(2, 8, 4, 4), torch.randn(2, 8, 4, 4)).shape == (2, 8, 4, 4)


def test_every_cell_has_its_own_position():
    positions = counted_position((3, 5), 16, like=torch.zeros(1))
    assert positions.shape == (15, 16)
    assert torch.cdist(positions, positions).fill_diagonal_(1.0).min() > 1e-3
