"""Mix-FFN: the hidden layer of patches mixes neighbours, that of prefix tokens does not."""

import torch
import torch.nn.functional as F
from support.registered import randomise

from vitrail.layers.conv_mlp import ConvMLPConfig
from vitrail.layers.norm import LayerNormConfig


def make(**options: object) -> torch.nn.Module:
    return randomise(ConvMLPConfig(**options).build(4, norm=LayerNormConfig())).double().eval()


def test_a_filter_that_is_the_identity_leaves_an_mlp():
    layer, tokens = make(), torch.randn(2, 6, 4, dtype=torch.float64)
    layer.conv.weight.data.zero_()
    layer.conv.weight.data[:, :, 1, 1] = 1
    layer.conv.bias.data.zero_()
    torch.testing.assert_close(layer(tokens, (2, 3)), layer.fc2(F.gelu(layer.fc1(tokens))))


def test_a_patch_reaches_its_eight_neighbours_and_no_other():
    layer, tokens = make(), torch.randn(1, 25, 4, dtype=torch.float64)
    louder = tokens.clone()
    louder[:, 12] += 1  # the middle of 5 x 5
    changed = (layer(louder, (5, 5)) - layer(tokens, (5, 5))).abs().amax(dim=(0, 2)).unflatten(0, (5, 5)) > 0
    expected = torch.zeros(5, 5, dtype=torch.bool)
    expected[1:4, 1:4] = True
    assert torch.equal(changed, expected)


def test_prefix_tokens_pass_around_the_convolution():
    layer, tokens = make(), torch.randn(2, 2 + 6, 4, dtype=torch.float64)
    found = layer(tokens, (2, 3))
    torch.testing.assert_close(found[:, :2], layer.fc2(F.gelu(layer.fc1(tokens[:, :2]))))
    torch.testing.assert_close(found[:, 2:], layer(tokens[:, 2:], (2, 3)))


def test_rectified_and_hidden():
    layer, tokens = make(hidden=5, rectified=True), torch.randn(1, 6, 4, dtype=torch.float64)
    assert layer.fc1.out_features == 5
    maps = layer.fc1(tokens).relu().transpose(1, 2).unflatten(2, (2, 3))
    expected = layer.fc2(F.gelu(layer.conv(maps).flatten(2).transpose(1, 2)))
    torch.testing.assert_close(layer(tokens, (2, 3)), expected)
