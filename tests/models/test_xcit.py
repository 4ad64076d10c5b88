"""XCiT: published sizes, the class token, images of any size, bad input."""

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import pictures, randomise, tiny

from vitrail.errors import ConfigError
from vitrail.layers.attention import Site
from vitrail.models.registry import create
from vitrail.models.xcit import ClassBlock, LocalPatchInteraction, XCiTConfig

# timm's table of results, which counts what norms compute too: that is 1.6 % of the smallest model.
PUBLISHED = {
    "xcit_nano_12_p16": Published(3.05, 0.56, "timm"),
    "xcit_tiny_12_p16": Published(6.72, 1.24, "timm"),
    "xcit_tiny_24_p16": Published(12.12, 2.34, "timm"),
    "xcit_small_12_p16": Published(26.25, 4.82, "timm"),
    "xcit_small_24_p16": Published(47.67, 9.10, "timm"),
    "xcit_nano_12_p8": Published(3.05, 2.16, "timm"),
    "xcit_tiny_12_p8": Published(6.71, 4.81, "timm"),
    "xcit_tiny_24_p8": Published(12.11, 9.21, "timm"),
    "xcit_small_12_p8": Published(26.21, 18.69, "timm"),
    "xcit_small_24_p8": Published(47.63, 35.81, "timm"),
}


@sizes(PUBLISHED)
def test_published_sizes(name):
    check_published(name, PUBLISHED[name], tolerance=0.02 if "nano" in name else 0.01)


def test_the_class_token_comes_after_the_blocks():
    model = tiny("xcit_tiny_12_p16")
    images = pictures(model)
    before, features = model.intermediates(images)[-1], model.features(images)
    assert before.prefix.shape == (2, 0, 16)
    assert features.prefix.shape == (2, 1, 16)
    with torch.no_grad():
        model.stages[0].class_token.class_token += 1
    assert torch.equal(model.features(images).patches, features.patches)  # patches do not listen to it
    assert not torch.equal(model.features(images).prefix, features.prefix)


@pytest.mark.parametrize("norm_all", [False, True])
def test_class_block_by_hand(norm_all):
    # Attention and MLP say nothing, so that all that is left are norms: of (1, -1) and (3, -3) they are (1, -1).
    block = ClassBlock(Site(dim=2, num_heads=1, grid=(1, 1)), layer_scale=1.0, norm_all=norm_all).double()
    with torch.no_grad():
        for layer in (block.attention.projection, block.mlp.fc2):
            layer.weight.zero_()
            layer.bias.zero_()
    found = block(torch.tensor([[[3.0, -3.0], [3.0, -3.0]]]).double(), (1, 1))
    patch = 2.0 if norm_all else 8.0  # 3 + 1 is 4; normalised or not, it is added to itself
    expected = torch.tensor([[[1.0, -1.0], [patch, -patch]]]).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_neighbours_alone_interact_in_two_convolutions():
    layer = randomise(LocalPatchInteraction(4)).eval()
    tokens = torch.randn(1, 49, 4)
    louder = tokens.clone()
    louder[:, 24] += 1  # the middle of 7 x 7
    changed = (layer(louder, (7, 7)) != layer(tokens, (7, 7))).any(dim=2).unflatten(1, (7, 7))[0]
    expected = torch.zeros(7, 7, dtype=torch.bool)
    expected[1:6, 1:6] = True
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("size", [(33, 70), (16, 16), (5, 100)])
def test_images_of_any_size_give_the_grid_that_the_config_tells(size):
    model = tiny("xcit_nano_12_p16")
    features = model.features(torch.randn(1, 3, *size))
    assert features.grid == tuple(features.pyramid[0].shape[2:]) == model.config.grid(size)


def test_deep_models_begin_with_small_branches():
    gains = [create(f"xcit_tiny_{depth}_p16").stages[0].blocks[0].scale3.gain.max().item() for depth in (12, 24)]
    assert gains == pytest.approx([1.0, 1e-5])


def test_bad_configs_are_refused():
    with pytest.raises(ConfigError, match=r"depths.* 2"):
        XCiTConfig(dims=(32, 64), depths=(1, 1), num_heads=(1, 2))
    with pytest.raises(ConfigError, match=r"dims.* 20.* 8"):
        XCiTConfig(dims=(20,), depths=(1,), num_heads=(1,))
    with pytest.raises(ConfigError, match="patch_size"):
        create("xcit_nano_12_p16", patch_size=4)
