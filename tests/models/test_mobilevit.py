"""MobileViT: pixels at the same position of their patches attend to each other; maps of any size."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import randomise
from torch import nn

from vitrail.errors import ConfigError
from vitrail.layers.attention import Site
from vitrail.models.mobilevit import CornerConfig, MobileViTBlock, fold, unfold
from vitrail.models.registry import create

# The paper rounds the parameters to 1.3, 2.3 and 5.6 million. timm counts what norms do too:
# 3 % of the smallest.
PUBLISHED = {
    "mobilevit_xxs": Published(1.27, 0.42, "timm"),
    "mobilevit_xs": Published(2.32, 1.05, "timm"),
    "mobilevit_s": Published(5.58, 2.03, "timm"),
}


@sizes(PUBLISHED)
def test_published_sizes(name):
    check_published(name, PUBLISHED[name], tolerance=0.035)


def test_unfold_by_hand():
    pixels = torch.arange(8.0).view(1, 8, 1)
    corners = unfold(pixels, (2, 4))
    assert corners.flatten(1).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]  # corner by corner, two patches each


@pytest.mark.parametrize("grid", [(2, 2), (6, 4), (4, 10)])
def test_fold_is_the_way_back(grid):
    tokens = torch.randn(3, grid[0] * grid[1], 4)
    corners = unfold(tokens, grid)
    assert corners.shape == (12, grid[0] * grid[1] // 4, 4)
    assert torch.equal(fold(corners, grid), tokens)


def test_attention_stays_among_one_corner():
    block = randomise(MobileViTBlock(4, 8, depth=1, num_heads=2, drop_path=0.0)).eval()
    tokens, grid = torch.randn(1, 24, 8), (6, 4)
    lit = tokens.clone()
    lit[:, 2 * 4 + 3, 0] += 1  # a top right corner
    inner = block.transformer[0]
    changed = (inner(lit, grid) - inner(tokens, grid)).abs().sum(dim=2).unflatten(1, grid)[0]
    assert (changed[0::2, 1::2] > 0).all()
    changed[0::2, 1::2] = 0
    assert changed.max() == 0


def test_attention_is_shown_where_it_is():
    layer = randomise(CornerConfig().build(Site(dim=8, num_heads=2, grid=(1, 1)))).eval()
    tokens, grid = torch.randn(2, 24, 8), (6, 4)
    weights = layer.weights(tokens, grid)
    mixed = weights @ layer.contents(tokens, grid)
    torch.testing.assert_close(layer.joined(mixed), layer(tokens, grid))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 24))
    seen = weights[0, 0, 2 * 4 + 3].unflatten(0, grid) > 0
    assert seen[0::2, 1::2].all()
    assert seen.sum() == 6
    rows = torch.tensor([11, 0])
    torch.testing.assert_close(layer.weights(tokens, grid, rows), weights[:, :, rows])


def test_odd_maps_are_resampled_there_and_back():
    block = randomise(MobileViTBlock(4, 8, depth=1, num_heads=2, drop_path=0.0)).eval()
    flat = torch.ones(1, 4, 1, 1).expand(1, 4, 7, 5)
    seen = []
    block.transformer[0].register_forward_pre_hook(lambda _, inputs: seen.append((inputs[0].shape, inputs[1])))
    assert block(flat).shape == flat.shape
    assert seen == [((1, 48, 8), (8, 6))]


def test_block_fuses_with_its_input():
    block = randomise(MobileViTBlock(4, 8, depth=1, num_heads=2, drop_path=0.0)).eval()
    nn.init.zeros_(block.fuse.conv.weight[:, 4:])  # deaf to the transformer
    maps = torch.randn(1, 4, 4, 4)
    expected = block.fuse(torch.cat([maps, torch.zeros_like(maps)], dim=1))
    torch.testing.assert_close(block(maps), expected)


def test_transformers_need_stages():
    with pytest.raises(ConfigError, match=r"attention_dims.* 3 .*attention_depths"):
        create("mobilevit_s", attention_depths=(1, 2))
