"""Stages on maps and on tokens, and the conversion between them."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.layers.position import LearnedPosition
from vitrail.layers.stage import MapStage, OnTokens, Stage, State, TokenStage, no_prefix, to_map, to_tokens
from vitrail.layers.tokens import PrefixTokens


class Add(nn.Module):
    """A block that adds a number to maps or tokens, and records the grid that it gets."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number, self.grids = number, []

    def forward(self, x: Tensor, *grid: tuple[int, int]) -> Tensor:
        self.grids += grid
        return x + self.number


def call(block, *inputs):
    return block(*inputs)


def enter(stage: Stage, maps: Tensor) -> tuple[Tensor, Tensor]:
    return stage(maps, no_prefix(maps), call)


def test_tokens_and_maps_are_each_other():
    maps = torch.arange(12.0).reshape(1, 2, 2, 3)
    tokens = to_tokens(maps)
    assert tokens[0].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert torch.equal(to_map(tokens, (2, 3)), maps)
    assert no_prefix(maps).shape == (1, 0, 2)


def test_a_layer_for_tokens_is_put_to_maps():
    norm, maps = nn.LayerNorm(4), torch.randn(2, 4, 3, 5)
    expected = to_map(norm(to_tokens(maps)), (3, 5))
    torch.testing.assert_close(OnTokens(norm)(maps), expected)


def test_a_map_stage_downsamples_and_then_runs_its_blocks():
    stage = MapStage([Add(1.0), Add(2.0)], downsample=nn.AvgPool2d(2))
    maps = torch.randn(2, 3, 4, 6)
    found, prefix = enter(stage, maps)
    torch.testing.assert_close(found, nn.functional.avg_pool2d(maps, 2) + 3)
    assert prefix.shape == (2, 0, 3)
    assert stage.enter(maps).grid == (2, 3)
    assert stage.blocks[0].grids == []  # maps know their grid


def test_a_token_stage_tells_its_blocks_the_grid():
    stage = TokenStage([Add(1.0), Add(2.0)], downsample=nn.AvgPool2d(2))
    maps = torch.randn(2, 3, 4, 6)
    found, prefix = enter(stage, maps)
    torch.testing.assert_close(found, nn.functional.avg_pool2d(maps, 2) + 3)
    assert prefix.shape == (2, 0, 3)
    assert [block.grids for block in stage.blocks] == [[(2, 3)], [(2, 3)]]


def test_without_downsampling_the_first_block_reads_the_map_itself():
    maps = torch.randn(1, 3, 2, 2)
    assert torch.equal(MapStage([]).enter(maps).x, maps)
    assert torch.equal(TokenStage([]).enter(maps).x, to_tokens(maps))


def test_a_token_stage_adds_prefix_then_position():
    prefix, position = PrefixTokens(3, class_token=True, registers=2), LearnedPosition(3, grid=(2, 2), num_prefix=3)
    nn.init.normal_(position.table)
    nn.init.normal_(prefix.class_token)
    stage = TokenStage([Add(0.5)], prefix=prefix, position=position)
    maps = torch.randn(2, 3, 2, 2)
    state = stage.enter(maps)
    assert torch.equal(state.x, position(prefix(to_tokens(maps)), (2, 2)))
    found, tokens = enter(stage, maps)
    assert torch.equal(tokens, state.x[:, :3] + 0.5)
    assert torch.equal(found, to_map(state.x[:, 3:] + 0.5, (2, 2)))


def test_the_norm_stands_at_the_end_of_a_stage_and_not_after_a_block():
    norm = nn.LayerNorm(4)
    stage = TokenStage([Add(1.0)], prefix=PrefixTokens(4, class_token=True), norm=norm)
    maps = torch.randn(2, 4, 2, 3)
    state = stage.step(stage.blocks[0], stage.enter(maps), call)
    now, _ = stage.level(state)
    assert torch.equal(now, maps + 1)
    left, prefix = stage.leave(state)
    torch.testing.assert_close(left, OnTokens(norm)(maps + 1))
    torch.testing.assert_close(prefix, norm(torch.ones(2, 1, 4)))


@pytest.mark.parametrize("kind", [MapStage, TokenStage])
def test_a_stage_is_its_steps(kind):
    stage = kind([nn.Identity()], downsample=nn.MaxPool2d(2))
    stage.blocks = nn.ModuleList([Add(0.1), Add(0.2), Add(0.3)])
    maps, seen = torch.randn(1, 2, 4, 4), []

    def run(block, *inputs):
        seen.append(block)
        return block(*inputs)

    found, _ = stage(maps, no_prefix(maps), run)
    state = stage.enter(maps)
    for block in stage.blocks:
        state = stage.step(block, state, call)
    assert torch.equal(found, stage.leave(state)[0])
    assert seen == list(stage.blocks)


@pytest.mark.parametrize("kind", [MapStage, TokenStage])
def test_most_stages_leave_the_prefix_of_the_one_before_behind(kind):
    stage, maps = kind([Add(1.0)]), torch.randn(2, 3, 2, 2)
    found, prefix = stage(maps, torch.randn(2, 5, 3), call)
    assert torch.equal(found, maps + 1)
    assert prefix.shape == (2, 0, 3)


def test_a_stage_may_take_the_prefix_over():
    class Carrying(TokenStage):
        def receive(self, maps: Tensor, prefix: Tensor) -> State:
            tokens, grid = self.enter(maps)
            return State(torch.cat([prefix, tokens], dim=1), grid)

    stage, maps, before = Carrying([Add(1.0)]), torch.randn(2, 3, 2, 2), torch.randn(2, 5, 3)
    found, prefix = stage(maps, before, call)
    assert torch.equal(found, maps + 1)
    assert torch.equal(prefix, before + 1)
