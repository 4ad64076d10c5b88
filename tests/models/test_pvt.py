"""PVT and PVT v2: published sizes, the differences of the versions, and errors."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import randomise, tiny

from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention import Site
from vitrail.layers.conv_mlp import ConvMLP
from vitrail.models.pvt import CutReductionConfig
from vitrail.models.registry import create

PAPER, TIMM = "arXiv:2102.12122, table 2", "timm 1.0, results/benchmark-infer-*.csv"
PUBLISHED = {
    "pvt_tiny": Published(13.2, 1.9, PAPER),
    "pvt_small": Published(24.5, 3.8, PAPER),
    "pvt_medium": Published(44.2, 6.7, PAPER),
    "pvt_large": Published(61.4, 9.8, PAPER),
    "pvt_v2_b0": Published(3.67, 0.57, TIMM),
    "pvt_v2_b1": Published(14.01, 2.12, TIMM),
    "pvt_v2_b2": Published(25.36, 4.05, TIMM),
    "pvt_v2_b3": Published(45.24, 6.92, TIMM),
    "pvt_v2_b4": Published(62.56, 10.14, TIMM),
    "pvt_v2_b5": Published(81.96, 11.76, TIMM),
    "pvt_v2_b2_li": Published(22.55, 3.91, TIMM),
}


@sizes(PUBLISHED)
def test_has_the_published_size(name):
    # The paper rounds 1.93 to 1.9.
    check_published(name, PUBLISHED[name], tolerance=0.02 if name == "pvt_tiny" else 0.01)


def test_a_class_token_joins_in_the_last_stage_alone():
    model = tiny("pvt_tiny")
    images = torch.randn(2, 3, *model.config.image_size)
    prefixes = [features.prefix.shape[1] for features in model.intermediates(images)]
    assert prefixes == [0, 0, 0, 0, 1]
    assert torch.equal(model.pooled(features := model.features(images)), features.prefix[:, 0])


def test_the_second_version_has_no_positions_and_takes_any_size():
    model = tiny("pvt_v2_b0")
    assert not any("position" in name for name, _ in model.named_parameters())
    assert any(isinstance(module, ConvMLP) for module in model.modules())
    for size in ((33, 70), (8, 8)):
        features = model.features(torch.randn(1, 3, *size))
        assert [level.shape[2:] for level in features.pyramid] == list(model.config.grids(size))


def test_what_the_ratio_leaves_over_is_in_no_key():
    layer = randomise(CutReductionConfig(ratio=4).build(Site(dim=8, num_heads=2, grid=(3, 9)))).double()
    tokens = torch.randn(1, 3 * 9, 8, dtype=torch.float64)
    _, keys, _ = layer.read(tokens, (3, 9))
    assert keys.shape[2] == 1 * 2  # three rows are filled up to one key, of nine columns the last is left over
    weights = layer.weights(tokens, (3, 9))
    received = weights.unflatten(3, (3, 9)).sum(dim=(0, 1, 2))
    assert torch.equal(received > 0, torch.tensor([True] * 8 + [False]).expand(3, -1))
    torch.testing.assert_close(layer.joined(weights @ layer.contents(tokens, (3, 9))), layer(tokens, (3, 9)))


def test_the_linear_kind_has_as_many_keys_at_any_size():
    attention = tiny("pvt_v2_b2_li").stages[0].blocks[0].attention
    for side in (8, 16):
        _, keys, _ = attention.read(torch.randn(1, side * side, 16), (side, side))
        assert keys.shape[2] == 49


def test_a_size_that_does_not_divide_names_one_that_does():
    model = tiny("pvt_tiny", dynamic_size=True)
    with pytest.raises(InputError, match="64 x 96"):
        model(torch.randn(1, 3, 70, 96))


def test_lists_have_one_entry_a_stage():
    with pytest.raises(ConfigError, match=r"reductions.* 2 .*depths"):
        create("pvt_v2_b0", reductions=(2, 1))
    with pytest.raises(ConfigError, match=r"mlp_ratios.* 3"):
        create("pvt_tiny", mlp_ratios=(2.0, 1.0, 1.0))
