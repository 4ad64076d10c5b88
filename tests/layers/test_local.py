"""Local attention: windows around each patch, cut off at the border."""

import torch
from support.registered import randomise

from vitrail.layers.attention import LocalConfig, Site


def test_windows_are_cut_off_at_the_border():
    layer = randomise(LocalConfig(size=(3, 3)).build(Site(dim=8, num_heads=1, grid=(4, 5))))
    seen = layer.weights(torch.randn(1, 20, 8), (4, 5))[0, 0] > 0
    assert seen[0].nonzero().flatten().tolist() == [0, 1, 5, 6]  # a corner
    assert seen[2].nonzero().flatten().tolist() == [1, 2, 3, 6, 7, 8]  # an edge
    assert seen[7].nonzero().flatten().tolist() == [1, 2, 3, 6, 7, 8, 11, 12, 13]
    assert torch.equal(seen, seen.T)
