"""EfficientNet: seven groups of blocks on five levels, and one factor that scales them."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import randomise
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from vitrail.errors import ConfigError
from vitrail.layers.fuse import fuse
from vitrail.models.efficientnet import PadAfter
from vitrail.models.registry import create, resolve

PUBLISHED = {  # the paper's table 2 rounds these, and counts B2 at 260 pixels
    "efficientnet_b0": Published(5.289, 0.386, "torchvision"),
    "efficientnet_b1": Published(7.794, 0.687, "torchvision"),
    "efficientnet_b2": Published(9.110, 1.0, "torchvision; GMACs arXiv:1905.11946, table 2"),
    "efficientnet_b3": Published(12.233, 1.827, "torchvision"),
    "efficientnet_b4": Published(19.342, 4.394, "torchvision"),
    "efficientnet_b5": Published(30.390, 10.266, "torchvision"),
    "efficientnet_b6": Published(43.041, 19.068, "torchvision"),
    "efficientnet_b7": Published(66.348, 37.746, "torchvision"),
    "efficientnet_lite0": Published(4.652, 0.385, "timm"),
    "efficientnet_lite2": Published(6.092, 0.860, "timm"),
}


@sizes(PUBLISHED)
def test_published_sizes(name):
    check_published(name, PUBLISHED[name])


def test_seven_groups_make_five_levels():
    model = create("efficientnet_b0").eval()
    with torch.no_grad():
        features = model.features(torch.randn(1, 3, 64, 64))
    shapes = [tuple(level.shape[1:]) for level in features.pyramid]
    assert shapes == [(16, 32, 32), (24, 16, 16), (40, 8, 8), (112, 4, 4), (320, 2, 2)]
    assert [len(stage.blocks) for stage in model.stages] == [1, 2, 2, 6, 5]
    assert len(model.blocks) == 16


def test_scaling_rounds_as_the_paper_does():
    config = resolve("efficientnet_b4")[1]
    assert config.dims == (24, 32, 56, 112, 160, 272, 448)
    assert config.depths == (2, 4, 4, 6, 6, 8, 2)
    assert (config.stem_dim, config.final_dim) == (48, 1792)


def test_squeeze_is_a_quarter_of_what_comes_in():
    blocks = create("efficientnet_b0").blocks
    assert [blocks[index].squeeze.reduce.out_channels for index in (0, 1, 2, 15)] == [8, 4, 6, 48]
    assert isinstance(blocks[0].expand, nn.Identity)
    assert blocks[1].expand.conv.out_channels == 96


def test_another_number_of_groups_is_refused():
    with pytest.raises(ConfigError, match=r"depths.* 4 .*7"):
        create("efficientnet_b0", dims=(8, 8, 8, 8), depths=(1, 1, 1, 1))


def test_padding_after_starts_at_the_first_pixels():
    """Kernels of 3 begin at pixel 0 and kernels of 5 one before it; an odd size is rounded down."""
    layer = PadAfter(1, 1, 3, stride=2).eval()
    torch.nn.init.ones_(layer.conv.weight)
    maps = torch.arange(16.0).view(1, 1, 4, 4)
    found = layer(maps)[0, 0] * (1 + 1e-5) ** 0.5
    torch.testing.assert_close(found, torch.tensor([[45.0, 39.0], [66.0, 50.0]]))  # rows 0-2 and columns 0-2, and so on
    assert PadAfter(1, 1, 5, stride=2)(torch.randn(2, 1, 7, 9)).shape == (2, 1, 3, 4)


def test_padding_after_leaves_names_and_fuses():
    changes = {"pad_after": (True, False, True, True, True), "eps": 1e-3, "depths": (1,) * 7}
    model = randomise(create("efficientnet_b0", num_classes=3, **changes)).eval()
    assert model.state_dict().keys() == create("efficientnet_b0", num_classes=3, depths=(1,) * 7).state_dict().keys()
    images = torch.randn(1, 3, 75, 50)
    with torch.no_grad():
        expected, features = model(images), model.features(images)
        assert [tuple(level.shape[2:]) for level in features.pyramid] == list(model.config.grids((75, 50)))
        assert features.grid == (2, 1)
        torch.testing.assert_close(fuse(model)(images), expected, atol=1e-5, rtol=1e-4)


def test_every_halving_says_how_it_pads():
    with pytest.raises(ConfigError, match=r"pad_after.* 2 .*5"):
        create("efficientnet_b0", pad_after=(True, False))


def test_lite_has_neither_squeeze_excite_nor_silu():
    model = create("efficientnet_lite2")
    kinds = {type(module) for module in model.modules()}
    assert nn.ReLU6 in kinds
    assert nn.SiLU not in kinds
    assert all(isinstance(block.squeeze, nn.Identity) for block in model.blocks)
    config = model.config
    assert (config.depths[0], config.depths[-1], config.stem_dim, config.final_dim) == (1, 1, 32, 1280)
    assert config.dims == (16, 24, 48, 88, 120, 208, 352)


def test_the_head_may_read_all_levels():
    model = randomise(create("efficientnet_lite0", num_classes=3, pool_levels=True)).eval()
    assert model.head.in_features == 1280 + 16 + 24 + 40 + 112 + 320
    with torch.no_grad():
        features = model.features(torch.randn(2, 3, 64, 64))
        pooled = model.pooled(features)
    assert torch.equal(pooled[:, 1280:1296], features.pyramid[0].mean(dim=(2, 3)))
    assert torch.equal(pooled[:, -320:], features.pyramid[-1].mean(dim=(2, 3)))
    assert model.width_of_means == model.head.in_features


def test_the_head_may_read_cells_of_all_levels():
    model = randomise(create("efficientnet_lite0", num_classes=3, pool_levels=True, pool_cells=2)).eval()
    levels = 16 + 24 + 40 + 112 + 320
    assert (model.head.in_features, model.width_of_means) == (1280 + 5 * levels, 1280 + levels)
    with torch.no_grad():
        features = model.features(torch.randn(2, 3, 64, 64))
        pooled = model.pooled(features)
    assert torch.equal(pooled[:, 1280:1296], features.pyramid[0].mean(dim=(2, 3)))
    first = features.pyramid[0]  # 32 x 32: cells of 16 x 16, by channel, then by row
    assert torch.allclose(pooled[:, 1280 + levels + 1], first[:, 0, :16, 16:].mean(dim=(1, 2)), atol=1e-6)
    with pytest.raises(ConfigError, match="pool_levels"):
        create("efficientnet_lite0", pool_cells=2)


@pytest.mark.parametrize("size", [(64, 64), (160, 96), (33, 65)])
def test_cells_are_those_of_adaptive_pooling_at_any_size(size):
    model = randomise(create("efficientnet_lite0", num_classes=3, pool_levels=True, pool_cells=3)).eval()
    with torch.no_grad():
        features = model.features(torch.randn(2, 3, *size))
        pooled = model.pooled(features)
    cells = torch.cat([adaptive_avg_pool2d(level, 3).flatten(1) for level in features.pyramid], dim=1)
    torch.testing.assert_close(pooled[:, model.width_of_means :], cells, atol=1e-5, rtol=1e-5)
