"""Convolutional layers: their residual connections, and parts that are left out if they are not needed."""

import pytest
import torch
from parity.compare import randomise
from torch import nn

from vitrail.layers.conv import ConvNorm, InvertedResidual, ResidualBlock, SqueezeExcite, coarsened, depthwise
from vitrail.layers.fuse import fuse


@pytest.mark.parametrize("size", [(1, 1), (7, 12), (225, 32)])
def test_coarsened_is_what_padded_convolutions_leave(size):
    conv = nn.Conv2d(1, 1, 3, stride=2, padding=1)
    maps = torch.zeros(1, 1, *size)
    for stride in (2, 4, 8, 16):
        maps = conv(maps)
        assert coarsened(size, stride) == tuple(maps.shape[2:])


def test_depthwise_keeps_channels_apart():
    conv = depthwise(4, 5, stride=2)
    maps = torch.randn(1, 4, 9, 6)
    louder = maps.clone()
    louder[:, 1] += 1
    changed = (conv(louder) - conv(maps)).abs().amax(dim=(0, 2, 3))
    assert conv(maps).shape == (1, 4, 5, 3)
    assert changed[1] > 0
    assert changed[[0, 2, 3]].max() == 0


def test_conv_norm_by_hand():
    layer = ConvNorm(1, 1, 1, activation=nn.ReLU(), eps=1e-12, gain=3.0).eval()
    nn.init.constant_(layer.conv.weight, 2.0)
    layer.norm.running_mean.fill_(1.0)
    layer.norm.running_var.fill_(4.0)
    maps = torch.tensor([[[[0.0, 2.0]]]])
    assert layer(maps).flatten().tolist() == [0.0, 4.5]  # relu of 3 (2 x - 1) / 2


@pytest.mark.parametrize("activation", [None, nn.SiLU()])
def test_conv_norm_folds_into_one_convolution(activation):
    layer = randomise(ConvNorm(4, 6, 3, stride=2, groups=2, activation=activation)).double()
    maps = torch.randn(2, 4, 7, 5, dtype=torch.float64)
    one = layer.fused()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in one.modules())
    torch.testing.assert_close(one(maps), layer(maps))


def test_squeeze_excite_gates_by_the_mean():
    layer = SqueezeExcite(2, 1)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, 1.0)
    maps = torch.tensor([[[[0.0, 2.0]], [[3.0, 5.0]]]])  # B D h w, means 1 and 4
    gate = torch.sigmoid(torch.tensor(1 + 1 + 1 + 4.0))  # 1 + relu(1 + mean + mean)
    torch.testing.assert_close(layer(maps), maps * gate)


def test_inverted_residual_is_its_parts():
    layer = randomise(InvertedResidual(4, 4, hidden=8, squeeze=2))
    maps = torch.randn(2, 4, 5, 3)
    branch = layer.project(layer.squeeze(layer.filter(layer.expand(maps))))
    assert torch.equal(layer(maps), maps + branch)
    assert layer.filter.conv.groups == 8
    assert isinstance(layer.squeeze.activation, nn.SiLU)


@pytest.mark.parametrize(("dim", "stride", "shape"), [(6, 1, (2, 6, 5, 3)), (4, 2, (2, 4, 3, 2))])
def test_inverted_residual_adds_only_where_it_fits(dim, stride, shape):
    layer = randomise(InvertedResidual(4, dim, hidden=8, stride=stride))
    maps = torch.randn(2, 4, 5, 3)
    branch = layer.project(layer.filter(layer.expand(maps)))
    assert branch.shape == shape
    assert torch.equal(layer(maps), branch)


def test_inverted_residual_without_expansion_or_squeeze():
    layer = InvertedResidual(4, 8, hidden=4)
    assert isinstance(layer.expand, nn.Identity)
    assert isinstance(layer.squeeze, nn.Identity)


def test_inverted_residual_folds_and_drops():
    layer = randomise(InvertedResidual(4, 4, hidden=8, squeeze=2, drop_path=0.5)).double()
    maps = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    expected = layer(maps)
    torch.testing.assert_close(fuse(layer)(maps), expected)
    layer.train()
    torch.manual_seed(0)
    kept = [torch.equal(layer(maps[:1]), maps[:1]) for _ in range(20)]
    assert 0 < sum(kept) < 20


@pytest.mark.parametrize("bottleneck", [False, True])
def test_residual_block_without_gain_is_the_identity_on_positive_maps(bottleneck):
    block, maps = ResidualBlock(8, 8, bottleneck=bottleneck, gain=0.0), torch.rand(2, 8, 5, 3)
    assert torch.equal(block(maps), maps)
    assert torch.equal(block(-maps), torch.zeros_like(maps))  # the last activation is a rectifier
    assert not torch.equal(ResidualBlock(8, 8, bottleneck=bottleneck)(maps), maps)


def test_bottleneck_halves_in_its_second_convolution():
    block = ResidualBlock(8, 16, bottleneck=True, stride=2)
    assert [layer.conv.stride for layer in block.branch] == [(1, 1), (2, 2), (1, 1)]
    assert [layer.conv.out_channels for layer in block.branch] == [4, 4, 16]
    assert block.shortcut.conv.stride == (2, 2)
    assert block(torch.randn(2, 8, 5, 4)).shape == (2, 16, 3, 2)
