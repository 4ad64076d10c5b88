"""Blocks against the formulas of their papers."""

import pytest
import torch
from support.registered import randomise

from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.block import Block
from vitrail.layers.mlp import GeluMLPConfig

GRID, DIM = (2, 3), 16


def make(**options):
    site = Site(dim=DIM, num_heads=2, grid=GRID, num_prefix=1)
    return randomise(Block(site, attention=SoftmaxConfig(), mlp=GeluMLPConfig(), **options)).double().eval()


def pre(x, attention, mlp, norm1, norm2, gain1, gain2):
    x = x + gain1 * attention(norm1(x))
    return x + gain2 * mlp(norm2(x), GRID)


def post(x, attention, mlp, norm1, norm2, gain1, gain2):
    x = norm1(x + gain1 * attention(x))
    return norm2(x + gain2 * mlp(x, GRID))


def res_post(x, attention, mlp, norm1, norm2, gain1, gain2):
    x = x + gain1 * norm1(attention(x))
    return x + gain2 * norm2(mlp(x, GRID))


@pytest.mark.parametrize("layer_scale", [None, 0.1])
@pytest.mark.parametrize("formula", [pre, post, res_post])
def test_block_is_its_formula(formula, layer_scale):
    block = make(norm_placement=formula.__name__, layer_scale=layer_scale)
    x = torch.randn(2, 7, DIM, dtype=torch.float64)
    gains = (1, 1) if layer_scale is None else (block.scale1.gain, block.scale2.gain)
    parts = (block.mlp, block.norm1, block.norm2)
    expected = formula(x, lambda tokens: block.attention(tokens, GRID), *parts, *gains)
    torch.testing.assert_close(block(x, GRID), expected, atol=1e-12, rtol=1e-12)


def test_placements_differ():
    x, blocks = (
        torch.randn(2, 7, DIM, dtype=torch.float64),
        [make(norm_placement=p) for p in ("pre", "post", "res_post")],
    )
    for block in blocks[1:]:
        block.load_state_dict(blocks[0].state_dict())
    results = [block(x, GRID) for block in blocks]
    assert not any(torch.allclose(a, b) for a, b in zip(results, [*results[1:], results[0]], strict=True))


def test_drop_path_decides_for_each_branch_anew():
    block = make(drop_path=0.5).train()
    x = torch.randn(1, 7, DIM, dtype=torch.float64).expand(64, -1, -1)
    outcomes = {round(sample.sum().item(), 6) for sample in block(x, GRID)}
    assert len(outcomes) == 4  # neither branch, one, the other, both


def test_a_dropped_block_is_the_identity():
    block = make(drop_path=0.5).train()
    x = torch.randn(64, 7, DIM, dtype=torch.float64)
    untouched = (block(x, GRID) == x).flatten(1).all(dim=1)
    assert 4 < untouched.sum() < 32  # a quarter of 64
