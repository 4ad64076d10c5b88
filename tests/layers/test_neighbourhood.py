"""Neighbourhood attention: the nearest patches, also at the border."""

import torch
from support.registered import randomise

from vitrail.layers.attention import NeighbourhoodConfig, Site


def test_windows_move_inward_at_the_border():
    layer = randomise(NeighbourhoodConfig(size=(3, 3)).build(Site(dim=8, num_heads=1, grid=(4, 5))))
    seen = layer.weights(torch.randn(1, 20, 8), (4, 5))[0, 0] > 0
    corner = [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert seen[0].nonzero().flatten().tolist() == corner
    assert seen[6].nonzero().flatten().tolist() == corner  # the patch in the middle of that window
    assert seen[19].nonzero().flatten().tolist() == [7, 8, 9, 12, 13, 14, 17, 18, 19]
    assert (seen.sum(dim=1) == 9).all()


def test_equal_keys_give_the_mean_of_the_window():
    layer = randomise(NeighbourhoodConfig(size=(3, 1)).build(Site(dim=2, num_heads=1, grid=(5, 1)))).double()
    with torch.no_grad():
        layer.qkv.weight[:4] = 0  # no query and no key: all logits are equal
        layer.qkv.bias.zero_()
        layer.qkv.weight[4:] = torch.eye(2)
        layer.projection.weight.copy_(torch.eye(2))
        layer.projection.bias.zero_()
    tokens = torch.tensor([1.0, 2.0, 6.0, 10.0, 20.0]).double()[None, :, None].expand(1, 5, 2)
    expected = torch.tensor([3.0, 3.0, 6.0, 12.0, 12.0]).double()
    torch.testing.assert_close(layer(tokens, (5, 1))[0, :, 0], expected)
