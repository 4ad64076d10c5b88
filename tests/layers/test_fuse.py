"""Batch norms folded into other layers: the same function with fewer layers."""

import pytest
import torch
from support.registered import randomise
from torch import nn

from vitrail.errors import Unsupported
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.fuse import Fusable, fold_batch_norm, fold_batch_norm_before, fuse, scale_and_shift


def seen(norm: nn.Module) -> nn.Module:
    """A batch norm with random statistics and weights."""
    randomise(norm)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 3.0)
    return norm.eval()


def test_scale_and_shift_by_hand():
    norm = nn.BatchNorm1d(1, eps=1.0).eval()
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(3.0)  # with eps, a deviation of 2
    norm.weight.data.fill_(6.0)
    norm.bias.data.fill_(1.0)
    gain, offset = scale_and_shift(norm)
    assert (gain.item(), offset.item()) == (3.0, -5.0)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_norm_become_one(bias):
    layer, norm, x = randomise(nn.Linear(5, 7, bias=bias)).double(), seen(nn.BatchNorm1d(7)).double(), torch.randn(9, 5)
    before = layer.weight.clone()
    folded = fold_batch_norm(layer, norm)
    torch.testing.assert_close(folded(x.double()), norm(layer(x.double())), atol=1e-14, rtol=1e-14)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("bias", [False, True])
def test_norm_and_linear_become_one(bias):
    norm, layer, x = seen(nn.BatchNorm1d(5)).double(), randomise(nn.Linear(5, 7, bias=bias)).double(), torch.randn(9, 5)
    folded = fold_batch_norm_before(norm, layer)
    torch.testing.assert_close(folded(x.double()), layer(norm(x.double())), atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2},
        {"padding_mode": "reflect", "padding": 1},
    ],
    ids=str,
)
def test_conv_and_norm_become_one(options):
    conv, norm = randomise(nn.Conv2d(4, 6, 3, bias=False, **options)).double(), seen(nn.BatchNorm2d(6)).double()
    maps = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(fold_batch_norm(conv, norm)(maps), norm(conv(maps)), atol=1e-14, rtol=1e-14)


def test_keeps_type_and_mode():
    conv, norm = nn.Conv2d(4, 6, 1).bfloat16().eval(), seen(nn.BatchNorm2d(6)).bfloat16()
    folded = fold_batch_norm(conv, norm)
    assert folded.weight.dtype == folded.bias.dtype == torch.bfloat16
    assert not folded.training


def test_a_norm_without_statistics_cannot_vanish():
    with pytest.raises(Unsupported, match="running"):
        fold_batch_norm(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))


class Doubled(Fusable):
    """Two consecutive maps that fold into one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.second(self.first(x))

    def fused(self):
        one = nn.Linear(3, 3, bias=False)
        one.weight.data.copy_(self.second.weight @ self.first.weight)
        return one


def test_fuse_finds_layers_at_any_depth():
    model, x = nn.Sequential(Doubled(), nn.Sequential(nn.ReLU(), Doubled())), torch.randn(2, 3)
    expected = model(x)
    assert fuse(model) is model
    assert not any(isinstance(module, Fusable) for module in model.modules())
    torch.testing.assert_close(model(x), expected)


def test_a_flag_of_the_same_name_is_no_fusable_layer():
    attention = SoftmaxConfig(fused=True).build(Site(dim=4, num_heads=1, grid=(1, 1)))
    assert not isinstance(attention, Fusable)
    assert fuse(nn.ModuleList([attention]))[0] is attention
