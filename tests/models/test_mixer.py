"""MLP-Mixer: published sizes, its block by hand, and its fixed image size."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny

from vitrail.errors import ConfigError, InputError, Unsupported
from vitrail.models.mixer import MIXER
from vitrail.models.registry import create

TIMM = "timm's results/benchmark-infer-amp-nchw-pt291-cu130-5090.csv"
PUBLISHED = {
    "mixer_s32": Published(19.10, 1.00, TIMM),
    "mixer_s16": Published(18.53, 3.79, TIMM),
    "mixer_b32": Published(60.29, 3.24, TIMM),
    "mixer_b16": Published(59.88, 12.62, TIMM),
    "mixer_l32": Published(206.94, 11.27, TIMM),
    "mixer_l16": Published(208.20, 44.60, TIMM),
}


@sizes(MIXER.presets)
def test_published_size(name):
    check_published(name, PUBLISHED[name])


def test_block_by_hand():
    model = tiny("mixer_s16").double()
    block, tokens = model.blocks[0], torch.randn(2, 6, 16, dtype=torch.float64)
    mlp, normed = block.attention.mlp, block.norm1(tokens)
    hidden = torch.nn.functional.gelu(torch.einsum("bnd,hn->bdh", normed, mlp.fc1.weight) + mlp.fc1.bias)
    mixed = tokens + torch.einsum("bdh,nh->bnd", hidden, mlp.fc2.weight) + mlp.fc2.bias[:, None]
    torch.testing.assert_close(block(tokens, (3, 2)), mixed + block.mlp(block.norm2(mixed), (3, 2)))


def test_tokens_are_mixed_in_each_channel_alone():
    mix = tiny("mixer_s16").blocks[0].attention
    tokens = torch.randn(1, 6, 16)
    other = tokens.clone()
    other[:, :, 3] += 1
    changed = (mix(other, (3, 2)) - mix(tokens, (3, 2))).abs().amax(dim=(0, 1)) > 0
    assert changed.nonzero().flatten().tolist() == [3]


def test_there_is_one_level():
    model = tiny("mixer_s16")
    assert len(model.features(pictures(model)).pyramid) == 1
    with pytest.raises(ConfigError, match=r"depths has 2.*Mixer"):
        create("mixer_s16", depths=(2, 2), dims=(8, 8))


def test_another_image_size_is_refused():
    model = tiny("mixer_s16")
    with pytest.raises(InputError, match=r"40 x 16.*24 x 16"):
        model(torch.randn(1, 3, 40, 16))
    with pytest.raises(InputError, match=r"40 x 40.*image_size=\(40, 40\)"):
        model.resize(40)
    assert model.resize((24, 16)) is model
    with pytest.raises(Unsupported, match=r"Mixer .*dynamic_size"):
        create("mixer_s16", dynamic_size=True)


def test_other_bad_images_are_told_as_ever():
    with pytest.raises(InputError, match="3 dimensions"):
        tiny("mixer_s16")(torch.randn(3, 24, 16))


def test_there_is_no_attention_to_show():
    with pytest.raises(Unsupported, match="TokenMLP"):
        tiny("mixer_s16").blocks[0].attention.weights(torch.randn(1, 6, 16), (3, 2))


def test_a_fresh_head_says_nothing():
    model = create("mixer_s32", dims=(32,), depths=(1,), num_classes=5)
    assert model(pictures(model, 1)).abs().max() == 0
