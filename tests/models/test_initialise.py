"""Initial weights have the statistics of the papers and their code."""

import math

import pytest
import torch
from torch import nn

from vitrail.models.initialise import SkipInit, initialise_convolutions
from vitrail.models.registry import create

DIM, FAN_IN = 128, 3 * 16 * 16


def fresh(init, **changes):
    return create("vit_tiny_patch16", dim=DIM, depth=1, num_heads=2, init=init, **changes)


def test_paper_fills_queries_keys_and_values_as_maps_of_their_own():
    bound = math.sqrt(6 / (DIM + DIM))
    for part in fresh("paper").blocks[0].attention.qkv.weight.chunk(3):
        assert part.abs().max() <= bound
        assert part.abs().max() > 0.99 * bound
        assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


def test_paper_fills_a_pool_as_maps_of_their_own():
    bound = math.sqrt(6 / (DIM + DIM))
    pool = fresh("paper", pool="attention").pool
    for part in pool.kv.weight.chunk(2):
        assert 0.99 * bound < part.abs().max() <= bound
    assert pool.query.abs().max() <= math.sqrt(6 / (DIM + 1))
    assert pool.query.std() > 0


def test_paper_fills_the_mlp():
    mlp = fresh("paper").blocks[0].mlp
    bound = math.sqrt(6 / (DIM + 4 * DIM))
    assert 0.99 * bound < mlp.fc1.weight.abs().max() <= bound
    for bias in (mlp.fc1.bias, mlp.fc2.bias):
        assert bias.std().item() == pytest.approx(1e-6, rel=0.3)


def test_paper_fills_patches_lecun_normal():
    projection = fresh("paper").patch.projection
    std = 1 / math.sqrt(FAN_IN)
    assert projection.weight.std().item() == pytest.approx(std, rel=0.02)
    assert projection.weight.abs().max() <= 2 * std / 0.8796  # cut at two deviations of the uncut normal
    assert not projection.bias.any()


def test_paper_starts_from_zero_at_head_and_class_token():
    model = fresh("paper")
    for zero in (model.head.weight, model.head.bias, model.prefix.class_token, model.blocks[0].attention.qkv.bias):
        assert not zero.any()
    assert model.position[0].table.std().item() == pytest.approx(0.02, rel=0.05)
    model.reset_head(3)
    assert not model.head.weight.any()


def test_trunc_normal_is_small_throughout():
    model = fresh("trunc_normal", registers=4)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert len(linears) == 5
    for linear in linears.values():
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert not linear.bias.any()
    assert model.position[0].table.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.prefix.class_token.std().item() == pytest.approx(0.02, rel=0.3)
    assert model.prefix.registers.std().item() == pytest.approx(0.02, rel=0.3)
    model.reset_head(100)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_factored_positions_are_filled():
    position = fresh("paper", position="factored").position[0]
    for axis in (position.rows, position.columns):
        assert axis.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("init", ["paper", "trunc_normal"])
def test_the_seed_decides(init):
    torch.manual_seed(5)
    first = fresh(init).state_dict()
    torch.manual_seed(5)
    second = fresh(init).state_dict()
    other = fresh(init).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "blocks.0.attention.qkv.weight"
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("init", ["paper", "trunc_normal"])
def test_signal_keeps_its_size_through_depth(init):
    model = create("vit_tiny_patch16", dim=64, depth=8, num_heads=2, image_size=32, init=init)
    first, *_, last = model.intermediates(torch.randn(4, 3, 32, 32))
    ratio = (last.patches.std() / first.patches.std()).item()
    assert 0.5 < ratio < 4


@pytest.mark.parametrize(("std", "expected"), [(None, math.sqrt(2 / (64 * 9 / 2))), (0.02, 0.02)])
def test_convolutions_are_filled_by_their_fan_out_or_as_told(std, expected):
    conv = nn.Conv2d(32, 64, 3, groups=2)
    initialise_convolutions(nn.Sequential(conv), std=std)
    assert conv.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert not conv.bias.any()


def test_undrawn_weights_cost_no_random_number():
    before = torch.random.get_rng_state()
    with SkipInit():
        model = fresh("trunc_normal", position=["learned", "rope"])
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = fresh("trunc_normal", position=["learned", "rope"])
    assert {name: table.shape for name, table in drawn.state_dict().items()} == {
        name: table.shape for name, table in model.state_dict().items()
    }
    assert not torch.equal(torch.random.get_rng_state(), before)
