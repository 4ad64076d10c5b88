"""Branches that fold into one convolution: the same outputs, by hand and with random weights."""

import copy

import pytest
import torch
from parity.compare import randomise
from torch import nn

from vitrail.layers.fuse import fuse
from vitrail.layers.reparam import RepConv, RepMixer, RepPosition, mobile_one, padded, with_identity

CASES = {
    "several sizes": (lambda: RepConv(4, 8, (7, 3, 1), groups=4), (7, 7)),
    "with a stride": (lambda: RepConv(4, 8, (7, 3), stride=2, groups=4), (7, 7)),
    "dense, with the identity": (lambda: RepConv(4, 4, (3, 1), identity=True), (3, 3)),
    "in groups, with the identity": (lambda: RepConv(6, 6, (3,), groups=2, identity=True), (3, 3)),
    "the identity alone": (lambda: RepConv(4, 4, (), groups=4, identity=True), (1, 1)),
    "mixer": (lambda: RepMixer(4, kernel=3), (3, 3)),
    "position": (lambda: RepPosition(4, kernel=7), (7, 7)),
}


@pytest.mark.parametrize(("make", "kernel"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("size", [(6, 5), (1, 2)], ids=str)
def test_one_convolution_gives_the_same_output(make, kernel, size):
    layer = randomise(make()).double()
    channels = 6 if "groups=2" in str(layer) else 4
    maps = torch.randn(2, channels, *size, dtype=torch.float64)
    fused = layer.fused()
    assert type(fused) is nn.Conv2d
    assert fused.kernel_size == kernel
    assert fused.bias is not None
    assert not fused.training
    torch.testing.assert_close(fused(maps), layer(maps), atol=1e-12, rtol=1e-12)
    assert sum(p.numel() for p in fused.parameters()) < sum(p.numel() for p in layer.parameters()) + 1


def test_the_layer_itself_stays():
    layer = randomise(RepMixer(4))
    before = copy.deepcopy(layer.state_dict())
    layer.fused()
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_two_branches_by_hand():
    layer = RepConv(1, 1, (3, 1), identity=True).eval()
    three, one = layer.branches
    nn.init.constant_(three.conv.weight, 1.0)
    nn.init.constant_(one.conv.weight, 5.0)
    three.norm.running_mean.fill_(2.0)
    three.norm.running_var.fill_(4.0 - three.norm.eps)  # (x - 2) / 2
    one.norm.running_var.fill_(1.0 - one.norm.eps)
    layer.identity.running_var.fill_(1.0 - layer.identity.eps)
    layer.identity.bias.data.fill_(10.0)  # x + 10
    conv = layer.fused()
    expected = torch.full((3, 3), 0.5)
    expected[1, 1] = 0.5 + 5.0 + 1.0
    torch.testing.assert_close(conv.weight[0, 0], expected)
    torch.testing.assert_close(conv.bias, torch.tensor([-1.0 + 10.0]))


def test_mixer_is_what_the_paper_says():
    layer = randomise(RepMixer(4)).double()
    maps = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    gain = layer.scale.layer.gain[:, None, None]
    torch.testing.assert_close(layer(maps), maps + gain * (layer.mixer(maps) - layer.norm(maps)))
    layer.scale.layer.gain.data.zero_()
    assert torch.equal(layer(maps), maps)


@pytest.mark.parametrize(
    ("kernel", "stride", "branches", "identity"), [(3, 1, 2, True), (3, 2, 2, False), (1, 1, 1, True)]
)
def test_mobile_one_has_the_branches_that_fit(kernel, stride, branches, identity):
    block = mobile_one(4, 4, kernel, stride=stride)
    assert len(block[0].branches) == branches
    assert (block[0].identity is not None) == identity
    assert mobile_one(4, 6, kernel)[0].identity is None


def test_mobile_one_fuses_within_a_model():
    block = randomise(mobile_one(4, 8, 3, groups=4, squeeze=2)).double()
    maps = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    expected = block(maps)
    fuse(block)
    assert [type(each).__name__ for each in block] == ["Conv2d", "SqueezeExcite", "GELU"]
    torch.testing.assert_close(block(maps), expected, atol=1e-12, rtol=1e-12)


def test_weights_grow_around_their_centre():
    weight = torch.arange(9.0).reshape(1, 1, 3, 3)
    assert torch.equal(padded(weight, 5)[0, 0, 1:4, 1:4], weight[0, 0])
    assert padded(weight, 5).sum() == weight.sum()
    assert torch.equal((with_identity(weight) - weight).nonzero(), torch.tensor([[0, 0, 1, 1]]))
