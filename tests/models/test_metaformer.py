"""MetaFormers: published sizes, mixers by stage, and the layers around them."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny

from vitrail.errors import ConfigError, InputError
from vitrail.layers.attention import SoftmaxAttention
from vitrail.layers.norm import GroupNorm
from vitrail.layers.token_mixer import PoolMixer, SepConvMixer
from vitrail.models.metaformer import METAFORMER
from vitrail.models.registry import create

TIMM = "timm's results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv"
PUBLISHED = {
    "poolformer_s12": Published(11.92, 1.82, TIMM),
    "poolformer_s24": Published(21.39, 3.41, TIMM),
    "poolformer_s36": Published(30.86, 5.00, TIMM),
    "poolformer_m36": Published(56.17, 8.80, TIMM),
    "poolformer_m48": Published(73.47, 11.59, TIMM),
    "poolformerv2_s12": Published(11.89, 1.83, TIMM),
    "poolformerv2_s24": Published(21.34, 3.42, TIMM),
    "poolformerv2_s36": Published(30.79, 5.01, TIMM),
    "poolformerv2_m36": Published(56.08, 8.81, TIMM),
    "poolformerv2_m48": Published(73.35, 11.59, TIMM),
    "convformer_s18": Published(26.77, 3.96, TIMM),
    "convformer_s36": Published(40.01, 7.67, TIMM),
    "convformer_m36": Published(57.05, 12.89, TIMM),
    "convformer_b36": Published(99.88, 22.69, TIMM),
    "caformer_s18": Published(26.34, 4.13, TIMM),
    "caformer_s36": Published(39.30, 8.00, TIMM),
    "caformer_m36": Published(56.20, 13.29, TIMM),
    "caformer_b36": Published(98.75, 23.22, TIMM),
}


@sizes(METAFORMER.presets)
def test_published_size(name):
    check_published(name, PUBLISHED[name])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("poolformer_s12", [PoolMixer] * 4),
        ("convformer_s18", [SepConvMixer] * 4),
        ("caformer_s18", [SepConvMixer, SepConvMixer, SoftmaxAttention, SoftmaxAttention]),
    ],
)
def test_each_stage_has_its_mixer(name, kinds):
    assert [type(stage.blocks[0].mixer) for stage in tiny(name).stages] == kinds


def test_mixers_can_be_chosen():
    model = tiny("caformer_s18", mixers=["pool", "conv", "attention", "pool"])
    assert model(pictures(model)).shape == (2, 5)
    with pytest.raises(ConfigError, match=r"mixers\[1\].*'attention'"):
        tiny("caformer_s18", mixers=["pool", "atention", "conv", "conv"])


def test_lists_have_one_entry_a_stage():
    with pytest.raises(ConfigError, match=r"mixers.* 3 .*depths"):
        tiny("caformer_s18", mixers=["pool"] * 3)
    with pytest.raises(ConfigError, match=r"res_scale.* 1 .*depths"):
        tiny("caformer_s18", res_scale=[True])


def test_baselines_have_no_bias_in_their_blocks():
    model = tiny("caformer_s18")
    names = [name for name, _ in model.stages.named_parameters() if name.endswith("bias")]
    assert all("downsample" in name or "activation" in name for name in names)


def test_gains_on_the_residual_stream_stand_in_the_last_two_stages():
    names = [name for name, _ in tiny("convformer_s18").named_parameters() if "res_scale" in name]
    assert {name.split(".")[1] for name in names} == {"2", "3"}


def test_final_norm_stands_over_the_map_or_the_pooled_vector():
    over_map = tiny("poolformer_s12", final_norm="map")
    assert isinstance(over_map.norm, GroupNorm)
    patches = over_map.features(pictures(over_map)).patches
    plain = (patches - over_map.norm.bias) / over_map.norm.weight
    torch.testing.assert_close(plain.mean(dim=(1, 2)), torch.zeros(2), atol=1e-4, rtol=0)
    pooled = tiny("poolformer_s12", num_classes=0)
    torch.nn.init.ones_(pooled.pool_norm.weight)
    torch.nn.init.zeros_(pooled.pool_norm.bias)
    torch.testing.assert_close(pooled(pictures(pooled)).mean(dim=1), torch.zeros(2), atol=1e-5, rtol=0)


def test_any_image_size_works_from_3_pixels_on():
    model = tiny("caformer_s18")
    for size in ((3, 5), (33, 47)):
        features = model.features(torch.randn(1, 3, *size))
        assert [level.shape[2:] for level in features.pyramid] == list(model.config.grids(size))
    with pytest.raises(InputError, match=r"2 x 50 .*3 x 3"):
        model(torch.randn(1, 3, 2, 50))


def test_fresh_branches_are_as_published():
    model = create("poolformer_s12", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))
    assert model.stages[0].blocks[0].scale1.gain.unique().tolist() == pytest.approx([1e-5])
    assert model.stem[0].weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.stem[0].bias.abs().max() == 0
