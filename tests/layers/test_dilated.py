"""Dilated attention equals neighbourhood attention within each residue class."""

import torch
from support.registered import randomise

from vitrail.layers.attention import DilatedConfig, NeighbourhoodConfig, Site


def test_each_class_is_a_grid_of_its_own():
    site = Site(dim=16, num_heads=2, grid=(9, 7))
    layer = randomise(DilatedConfig(size=(3, 3), dilation=(2, 3)).build(site)).double()
    dense = NeighbourhoodConfig(size=(3, 3)).build(site).double()
    dense.load_state_dict(layer.state_dict())
    tokens = torch.randn(2, 63, 16).double()
    mixed, maps = layer(tokens, (9, 7)).unflatten(1, (9, 7)), tokens.unflatten(1, (9, 7))
    for y in range(2):
        for x in range(3):
            part = maps[:, y::2, x::3]
            grid = (part.shape[1], part.shape[2])
            torch.testing.assert_close(mixed[:, y::2, x::3].flatten(1, 2), dense(part.flatten(1, 2), grid))


def test_without_gaps_it_is_a_neighbourhood():
    site = Site(dim=16, num_heads=2, grid=(9, 7), num_prefix=1)
    layer = randomise(DilatedConfig(size=(3, 5), dilation=(1, 1)).build(site))
    twin = NeighbourhoodConfig(size=(3, 5)).build(site)
    twin.load_state_dict(layer.state_dict())
    tokens = torch.randn(2, 64, 16)
    assert torch.equal(layer(tokens, (9, 7)), twin(tokens, (9, 7)))


def test_gaps_may_be_wider_than_the_grid():
    layer = randomise(DilatedConfig(size=(3, 3), dilation=(8, 8)).build(Site(dim=8, num_heads=1, grid=(3, 2))))
    torch.testing.assert_close(layer.weights(torch.randn(1, 6, 8), (3, 2))[0, 0], torch.eye(6))
