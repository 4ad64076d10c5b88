"""Models with stages: levels, prefix, intermediates, tables of each stage, and checkpointing."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from vitrail.config import Count
from vitrail.errors import ConfigError, InputError, ResampledNotice
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.block import Block
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.patch import Grid
from vitrail.layers.position import LearnedPosition
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.stage import MapStage, TokenStage, to_tokens
from vitrail.layers.tokens import PrefixTokens
from vitrail.models.staged import Staged, StagedConfig


@dataclass(frozen=True, kw_only=True)
class TwoConfig(StagedConfig):
    """A stage of maps, then one of tokens."""

    image_size: tuple[Count, Count] = (16, 24)
    num_classes: int = 5
    dims: tuple[Count, ...] = (4, 8)
    depths: tuple[Count, ...] = (2, 3)
    num_heads: tuple[Count, ...] = (1, 2)

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        height, width = image_size
        if height % 8 or width % 8:
            raise InputError(f"{height} x {width} does not divide by 8")
        return (height // 4, width // 4), (height // 8, width // 8)


class Residual(nn.Module):
    """x + conv(x)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.conv(maps)


class Two(Staged):
    """Convolutions at the first level; class token, positions and relative biases at the second."""

    def __init__(self, config: TwoConfig) -> None:
        super().__init__(config)
        first, second = config.dims
        self.stem = nn.Conv2d(config.channels, first, 4, stride=4)
        grid = config.grids(config.image_size)[1]
        site = Site(dim=second, num_heads=2, grid=grid, num_prefix=1, positions=(RelativeConfig(),))
        blocks = [Block(site, attention=SoftmaxConfig(), mlp=GeluMLPConfig()) for _ in range(config.depths[1])]
        self.stages = nn.ModuleList(
            [
                MapStage([Residual(first) for _ in range(config.depths[0])]),
                TokenStage(
                    blocks,
                    downsample=nn.Conv2d(first, second, 2, stride=2),
                    prefix=PrefixTokens(second, class_token=True),
                    position=LearnedPosition(second, grid=grid, num_prefix=1),
                ),
            ]
        )
        self.norm = nn.LayerNorm(second)
        self.head = self.new_head()


def build(**changes) -> Two:
    torch.manual_seed(0)
    model = Two(TwoConfig(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def draw(size=(16, 24)) -> Tensor:
    return torch.randn(2, 3, *size)


def test_features_are_the_stages_in_turn():
    model, images = build(), draw()
    features = model.features(images)
    one, two = model.stages
    maps = model.stem(images)
    for block in one.blocks:
        maps = block(maps)
    assert torch.equal(features.pyramid[0], maps)
    tokens = two.position(two.prefix(to_tokens(two.downsample(maps))), (2, 3))
    for block in two.blocks:
        tokens = block(tokens, (2, 3))
    tokens = model.norm(tokens)
    assert features.grid == (2, 3)
    torch.testing.assert_close(features.prefix, tokens[:, :1])
    torch.testing.assert_close(features.patches, tokens[:, 1:])
    assert torch.equal(to_tokens(features.pyramid[1]), features.patches)


def test_logits_are_the_head_of_the_mean():
    model, images = build(), draw()
    features = model.features(images)
    torch.testing.assert_close(model(images), model.head(features.patches.mean(dim=1)))
    model.reset_head(0)
    torch.testing.assert_close(model(images), features.patches.mean(dim=1))


def test_blocks_and_levels_are_counted_over_all_stages():
    model = build()
    assert [type(block) for block in model.blocks] == [Residual] * 2 + [Block] * 3
    assert tuple(model.levels) == tuple(model.stages)
    assert not any(name.startswith("blocks") for name in model.state_dict())  # each block stands in its stage alone


def test_intermediates_stand_in_their_level():
    model, images = build(), draw()
    found = model.intermediates(images)
    assert [each.grid for each in found] == [(4, 6)] * 2 + [(2, 3)] * 3
    assert [each.prefix.shape[1:] for each in found] == [(0, 4)] * 2 + [(1, 8)] * 3
    assert [len(each.pyramid) for each in found] == [1, 1, 2, 2, 2]
    features = model.features(images)
    assert torch.equal(found[1].pyramid[0], features.pyramid[0])
    assert all(torch.equal(each.pyramid[0], features.pyramid[0]) for each in found[2:])
    last = torch.cat([found[-1].prefix, found[-1].patches], dim=1)
    torch.testing.assert_close(model.norm(last), torch.cat([features.prefix, features.patches], dim=1))


def test_intermediates_come_as_they_were_asked_for():
    model, images = build(), draw()
    every = model.intermediates(images)
    chosen = model.intermediates(images, layers=[-1, 0, 3])
    assert [each.grid for each in chosen] == [(2, 3), (4, 6), (2, 3)]
    assert torch.equal(chosen[0].patches, every[4].patches)
    assert torch.equal(chosen[2].patches, every[3].patches)
    with pytest.raises(ConfigError, match="layer 5"):
        model.intermediates(images, layers=[5])


def test_each_stage_moves_its_own_tables():
    model = build()
    with pytest.warns(ResampledNotice, match=r"16 x 24 .*32 x 16"):
        model.resize((32, 16))
    stage = model.stages[1]
    assert stage.position.table.shape == (1 + 4 * 2, 8)
    assert stage.position.grid == (4, 2)
    assert all(block.attention.relative.grid == (4, 2) for block in stage.blocks)
    assert all(block.attention.relative.table.shape == (7 * 3 + 3, 2) for block in stage.blocks)
    assert model.features(draw((32, 16))).grid == (4, 2)


def test_another_size_is_refused_unless_sizes_are_free():
    with pytest.raises(InputError, match="16 x 24"):
        build()(draw((32, 16)))
    free = build(dynamic_size=True)
    assert free(draw((32, 16))).shape == (2, 5)
    with pytest.raises(InputError, match="by 8"):
        free(draw((20, 16)))


def test_recomputed_blocks_give_the_same_gradients():
    model, images = build().train(), draw()
    kept = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    model.checkpointing = True
    calls = []
    handles = [block.register_forward_pre_hook(lambda *_: calls.append(1)) for block in model.blocks]
    recomputed = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    assert len(calls) == 2 * len(handles) == 10
    torch.testing.assert_close(recomputed, kept)


def test_a_fresh_head_keeps_the_type_of_the_model():
    model = build().double()
    model.labels = ("a", "b", "c", "d", "e")
    model.reset_head(3)
    assert model.head.weight.dtype == torch.float64
    assert model.config.num_classes == 3
    assert model.labels is None
    assert model.head.weight.abs().max() < 0.1  # 0.02, cut


@pytest.mark.parametrize(
    ("changes", "name"), [({"dims": (4,)}, "dims has 1"), ({"num_heads": (1, 2, 3)}, "num_heads has 3")]
)
def test_lists_have_one_entry_per_stage(changes, name):
    with pytest.raises(ConfigError, match=name):
        TwoConfig(**changes)
