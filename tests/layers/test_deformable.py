"""Deformable attention against loops that follow the paper, and properties of points on a map."""

import math

import pytest
import torch
from support.deformable_loops import by_hand, read_by_hand
from support.registered import randomise

from vitrail.errors import ConfigError
from vitrail.layers.attention import DeformableConfig, Site
from vitrail.layers.attention.deformable import bilinear, centres, sample
from vitrail.layers.stage import to_map

GRID = (4, 5)


def layer_of(grid=GRID, dim=16, num_heads=4, **changes):
    site = Site(dim=dim, num_heads=num_heads, grid=grid)
    return randomise(DeformableConfig(**changes).build(site)).double().eval()


def still(layer):
    """The layer with offsets of zero."""
    torch.nn.init.zeros_(layer.offsets[3].weight)
    return layer


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 2}, {"groups": 4, "kernel": 5, "reach": 5.0}, {"stride": 2}],
    ids=["plain", "groups", "far", "stride"],
)
@torch.no_grad()
def test_is_the_paper_point_by_point(options):
    layer, tokens = layer_of(**options), torch.randn(2, 20, 16, dtype=torch.float64)
    expected = torch.stack([by_hand(layer, one, GRID) for one in tokens])
    torch.testing.assert_close(layer(tokens, GRID), expected, atol=1e-10, rtol=1e-10)


def test_points_of_two_by_two_by_hand():
    """The centres of 2 x 2 cells are at -0.5 and 0.5; tanh(atanh(0.5)) moves by 0.5 of reach / 2 cells."""
    layer = layer_of(grid=(2, 2), dim=2, num_heads=1, kernel=1, reach=1.0)
    with torch.no_grad():
        layer.offsets[0].weight.zero_()
        layer.offsets[0].bias.copy_(torch.tensor([1.0, -1.0]))
        layer.offsets[1].layer.weight.fill_(1.0)
        layer.offsets[1].layer.bias.copy_(torch.tensor([99.0, -99.0]))  # GELU of about 100 and -100: 100 and 0
        layer.offsets[3].weight[:, :, 0, 0] = torch.tensor([[math.atanh(0.5), 0.0], [0.0, 1.0]]) / 100
    found = layer.points(torch.randn(1, 4, 2, dtype=torch.float64), (2, 2))[0, 0]
    expected = torch.tensor([[-0.25, -0.5], [-0.25, 0.5], [0.75, -0.5], [0.75, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_points_that_stay_are_attention_over_a_regular_grid(stride):
    layer = still(layer_of(stride=stride, relative=False))
    tokens = torch.randn(2, 20, 16, dtype=torch.float64)
    rows, columns = (-(-length // stride) for length in GRID)
    y, x = (
        (torch.arange(count, dtype=torch.float64) + 0.5) / count * (length - 1)
        for count, length in zip((rows, columns), GRID, strict=True)
    )
    pictures = to_map(tokens, GRID)
    read = torch.stack(
        [torch.stack([read_by_hand(one, r, c) for r in y.tolist() for c in x.tolist()]) for one in pictures]
    )
    q, (k, v) = layer.split(layer.q(tokens)), (layer.split(part) for part in layer.kv(read).chunk(2, dim=-1))
    mixed = (q @ k.transpose(-2, -1) / 2).softmax(dim=-1) @ v  # heads are 4 wide
    torch.testing.assert_close(layer(tokens, GRID), layer.joined(mixed), atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_a_moved_picture_moves_the_samples():
    """Away from the edges, a shift of the map shifts the output."""
    grid = (7, 7)
    layer = layer_of(grid=grid, groups=2)
    small = torch.zeros(1, 16, *grid, dtype=torch.float64)
    small[..., 2:4, 2:4] = torch.randn(16, 2, 2, dtype=torch.float64)
    moved = small.roll((1, 1), dims=(2, 3))
    before, after = (layer.points(layer.q(maps.flatten(2).transpose(1, 2)), grid) for maps in (small, moved))
    home = centres(grid, before)
    moves, moves_after = ((points - home).unflatten(2, grid) for points in (before, after))
    torch.testing.assert_close(moves_after[:, :, 2:6, 2:6], moves[:, :, 1:5, 1:5], atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_reach_bounds_the_points():
    layer = layer_of(reach=3.0)
    layer.offsets[3].weight.mul_(1e4)
    points = layer.points(torch.randn(2, 20, 16, dtype=torch.float64), GRID)
    steps = (points - centres(GRID, points)).abs() * torch.tensor(GRID) / 2  # in cells
    assert steps.max() <= 1.5 + 1e-9
    assert steps.max() > 1.4


@torch.no_grad()
def test_weights_share_in_what_is_read():
    """If values equal tokens and points are inside of the map, `weights` times the tokens is the output."""
    layer = layer_of(reach=0.1, groups=2)
    layer.kv.weight[16:] = torch.eye(16)
    layer.projection.weight.copy_(torch.eye(16))
    layer.kv.bias[16:] = layer.projection.bias[:] = 0
    for prefix in (0, 3):
        tokens = torch.randn(2, prefix + 20, 16, dtype=torch.float64)
        weights = layer.weights(tokens, GRID)
        expected = (weights @ layer.split(tokens)).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer(tokens, GRID), expected, atol=1e-10, rtol=1e-10)


def test_bilinear_shares_by_hand():
    points = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5], [7.0, 1.0]])
    found = bilinear(points, (2, 3)).unflatten(1, (2, 3))
    assert found.tolist() == [
        [[1, 0, 0], [0, 0, 0]],
        [[0, 0.5, 0], [0, 0.5, 0]],
        [[0, 0, 0], [0, 0.5, 0.5]],
        [[0, 0, 0], [0, 0, 1]],  # far below: shown on the edge
    ]


def test_sample_reads_between_pixels_and_nothing_outside():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    points = torch.tensor([[[[-1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [-2.0, -1.0], [5.0, 0.0]]]])
    assert sample(maps, *points.unbind(-1))[0, 0, 0].tolist() == [1.0, 2.0, 2.5, 3.5, 0.5, 0.0]


def test_places_are_exact_in_bfloat16():
    layer = layer_of()
    q = torch.randn(1, 20, 16, dtype=torch.float64)
    points = layer.points(q, GRID)
    low = layer.bfloat16().points(q.bfloat16(), GRID)
    assert low.dtype == torch.float32
    assert (low - points).abs().max() < 0.02  # the moves are coarse, the grid is not


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 3}, r"num_heads 4.*groups 3"),
        ({"kernel": 4}, r"kernel .*4.*odd"),
        ({"reach": 0.0}, r"reach .*0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        layer_of(**options)
