"""Linformer: its learned mixtures, and their resampling to another grid."""

import pytest
import torch
from support.registered import randomise
from support.scaling import growth

from vitrail.errors import Unsupported
from vitrail.layers.attention import LinformerConfig, Site, SoftmaxConfig
from vitrail.layers.attention.linformer import Mixture


def test_without_mixing_it_is_softmax_attention():
    site = Site(dim=32, num_heads=2, grid=(2, 3), num_prefix=1)
    exact = randomise(SoftmaxConfig().build(site)).double()
    layer = LinformerConfig(length=6).build(site).double()
    tables = {"keys.table": torch.eye(6), "values.table": torch.eye(6)}
    layer.load_state_dict(exact.state_dict() | tables)
    tokens = torch.randn(2, 7, 32).double()
    torch.testing.assert_close(layer(tokens, (2, 3)), exact(tokens, (2, 3)))


def test_a_mixture_by_hand():
    layer = Mixture(1, grid=(1, 2))
    layer.table.data = torch.tensor([[0.25], [0.75]])
    tokens = torch.tensor([[[[9.0], [4.0], [8.0]]]])  # one prefix token, two patches
    assert layer(tokens, (1, 2)).flatten().tolist() == [9.0, 7.0]


def test_moved_mixtures_weigh_as_much():
    layer = Mixture(2, grid=(4, 4))
    layer.table.data = torch.full((16, 2), 1 / 16)
    torch.testing.assert_close(layer.at((8, 6)), torch.full((48, 2), 1 / 48))
    layer.resize((8, 6))
    assert layer.table.shape == (48, 2)
    layer.table.requires_grad_(False)
    layer.resize((4, 4))
    assert not layer.table.requires_grad


def test_fresh_mixtures_are_as_large_as_one_patch():
    torch.manual_seed(0)
    mixed = Mixture(64, grid=(16, 16))(torch.randn(4, 1, 256, 8), (16, 16))
    assert mixed.std().item() == pytest.approx(1, abs=0.1)


def test_shared_has_one_map():
    site = Site(dim=32, num_heads=2, grid=(2, 3))
    names = [name for name, _ in LinformerConfig(shared=True).build(site).named_parameters() if "table" in name]
    assert names == ["keys.table"]


def test_weights_are_refused_with_the_reason():
    layer = LinformerConfig().build(Site(dim=32, num_heads=2, grid=(2, 3)))
    with pytest.raises(Unsupported, match="LinformerAttention"):
        layer.weights(torch.randn(1, 6, 32), (2, 3))


def test_cost_is_linear():
    assert max(growth(LinformerConfig())) < 4.01
