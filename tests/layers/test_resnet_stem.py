"""Patches of a ResNet's feature map: standardised filters, TensorFlow's padding, and the grid."""

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.errors import InputError
from vitrail.layers.resnet_stem import ResNetPatchConfig, StdConv, StdConvNorm, pad_same


def test_filters_are_standardised():
    conv = StdConv(1, 1, (1, 2), bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([3.0, 5.0]).view(1, 1, 1, 2))  # mean 4, deviation 1
    maps = torch.tensor([10.0, 7.0, 1.0]).view(1, 1, 1, 3)
    torch.testing.assert_close(conv(maps).flatten(), torch.tensor([-3.0, -6.0, -1.0]))  # right minus left, 0 at the end


def test_scale_and_shift_of_filters_do_not_matter():
    layer = randomise(StdConvNorm(3, 32, 3, activation=nn.ReLU()))
    maps = torch.randn(2, 3, 8, 6)
    expected = layer(maps)
    with torch.no_grad():
        layer.conv.weight.mul_(7).add_(2)
    torch.testing.assert_close(layer(maps), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("length", "kernel", "stride", "padding"),
    [(8, 7, 2, (2, 3)), (8, 3, 2, (0, 1)), (7, 3, 2, (1, 1)), (8, 3, 1, (1, 1))],
)
def test_odd_padding_goes_to_the_end(length, kernel, stride, padding):
    padded = pad_same(torch.ones(1, 1, length, length), (kernel, kernel), (stride, stride))[0, 0, length // 2]
    assert padded.tolist() == [0.0] * padding[0] + [1.0] * length + [0.0] * padding[1]


def test_small_windows_need_no_padding():
    maps = torch.randn(1, 2, 6, 4)
    assert torch.equal(pad_same(maps, (1, 1), (2, 2)), maps)


@pytest.mark.parametrize(
    ("config", "grid"),
    [
        (ResNetPatchConfig(), (7, 7)),
        (ResNetPatchConfig(size=(1, 1), depths=(3, 4, 9)), (14, 14)),
        (ResNetPatchConfig(size=(1, 1), depths=(2, 2, 2, 2)), (7, 7)),
        (ResNetPatchConfig(size=(2, 1), depths=(1,)), (28, 56)),
    ],
)
def test_grid_counts_the_strides_of_both(config, grid):
    assert config.grid((224, 224)) == grid


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"225 x 224 .*32 x 32"):
        ResNetPatchConfig().grid((225, 224))


def test_stages_widen_and_halve():
    layer = ResNetPatchConfig(size=(1, 1), depths=(1, 2), width=32).build(3, 16)
    assert [len(stage) for stage in layer.stages] == [1, 2]
    assert layer.stages[1](layer.stages[0](torch.randn(1, 32, 8, 6))).shape == (1, 256, 4, 3)
    assert layer(torch.randn(1, 3, 32, 24)).shape == (1, 12, 16)


def test_a_fresh_stage_adds_nothing():
    layer = ResNetPatchConfig(size=(1, 1), depths=(2,), width=32).build(3, 16)
    maps = torch.rand(1, 128, 4, 4)
    assert torch.equal(layer.stages[0][1](maps), maps)
