"""The contract of all registered positions: alone, if they are added to tokens, and in a model."""

import copy

import pytest
import torch
from support.registered import pictures, randomise, tiny, variants
from support.whole_graph import compiled_whole
from torch import Tensor

from vitrail.errors import ResampledNotice
from vitrail.layers.position import AddedPosition, AddedPositionConfig, Gridded, PositionConfig
from vitrail.models.backbone import Backbone

GRID, OTHER, BATCH, DIM = (3, 5), (4, 2), 2, 16
ALL = variants(PositionConfig)
ADDED = {name: config for name, config in ALL.items() if isinstance(config, AddedPositionConfig)}
every_added = pytest.mark.parametrize("config", ADDED.values(), ids=ADDED.keys())
every_position = pytest.mark.parametrize("config", ALL.values(), ids=ALL.keys())
every_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])


def make(config: AddedPositionConfig, prefix: int = 1, grid: tuple[int, int] = GRID) -> AddedPosition:
    return randomise(config.build(DIM, grid=grid, num_prefix=prefix))


def zeros(prefix: int = 1, grid: tuple[int, int] = GRID) -> Tensor:
    return torch.zeros(BATCH, prefix + grid[0] * grid[1], DIM)


def resized(layer: AddedPosition, grid: tuple[int, int]) -> AddedPosition:
    twin = copy.deepcopy(layer)
    twin.resize(grid)
    return twin


@every_added
@every_prefix
def test_adds_the_same_to_every_sample(config, prefix):
    layer = make(config, prefix)
    added = layer(zeros(prefix), GRID)
    assert added.shape == zeros(prefix).shape
    assert torch.equal(added[0], added[1])
    tokens = torch.randn_like(added)
    torch.testing.assert_close(layer(tokens, GRID), tokens + added)


@every_added
@every_prefix
def test_no_two_patches_stand_at_the_same_place(config, prefix):
    patches = make(config, prefix)(zeros(prefix), GRID)[0, prefix:]
    distance = torch.cdist(patches, patches) + 9 * torch.eye(len(patches))
    assert distance.min() > 1e-3


@every_added
@every_prefix
def test_the_prefix_moves_with_no_grid(config, prefix):
    layer = make(config, prefix)
    here, there = layer(zeros(prefix), GRID), layer(zeros(prefix, OTHER), OTHER)
    assert torch.equal(here[:, :prefix], there[:, :prefix])
    if layer.at(GRID).shape[0] == GRID[0] * GRID[1]:
        assert not here[:, :prefix].any()


@every_added
@every_prefix
def test_resize_is_what_another_grid_sees(config, prefix):
    layer = make(config, prefix)
    twin = resized(layer, OTHER)
    assert twin.grid == OTHER
    torch.testing.assert_close(twin(zeros(prefix, OTHER), OTHER), layer(zeros(prefix, OTHER), OTHER))
    assert torch.equal(resized(layer, GRID)(zeros(prefix), GRID), layer(zeros(prefix), GRID))


@every_added
def test_resize_keeps_trainability_and_dtype(config):
    layer = make(config).bfloat16()
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    layer.resize(OTHER)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert layer(zeros(grid=OTHER).bfloat16(), OTHER).dtype == torch.bfloat16


@every_added
def test_gradients_reach_every_parameter_and_token(config):
    layer, tokens = make(config), torch.randn_like(zeros()).requires_grad_()
    layer(tokens, GRID).square().sum().backward()
    assert all(leaf.grad.abs().min() > 0 for leaf in (tokens, *layer.parameters()))


@every_added
def test_state_dict_holds_what_is_learned(config):
    layer, other = make(config), make(config)
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}
    other.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(other(zeros(), GRID), layer(zeros(), GRID))


@every_added
@pytest.mark.parametrize("grid", [GRID, OTHER], ids=["own", "other"])
def test_compiles_whole(config, grid):
    layer = make(config)
    compiled = compiled_whole(layer)
    torch.testing.assert_close(compiled(zeros(grid=grid), grid), layer(zeros(grid=grid), grid))


@every_added
@pytest.mark.parametrize("grid", [GRID, OTHER], ids=["own", "other"])
def test_exports_with_any_batch(config, grid):
    layer, tokens = make(config), zeros(grid=grid)
    shapes = ({0: torch.export.Dim("batch")}, (None, None))
    program = torch.export.export(layer, (tokens, grid), dynamic_shapes=shapes).module()
    more = torch.cat([tokens, tokens + 1])
    torch.testing.assert_close(program(more, grid), layer(more, grid))


def shuffled(model: Backbone, images: Tensor) -> Tensor:
    """The images with their columns of patches reversed: 3 x 2 patches of 8 pixels."""
    left, right = images.split(8, dim=3)
    return torch.cat([right, left], dim=3)


@every_position
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_model_sees_where_patches_are(config, pool):
    model = tiny(position=(config,), pool=pool)
    images = pictures(model)
    assert not torch.allclose(model(shuffled(model, images)), model(images), atol=1e-3)


@pytest.mark.parametrize("pool", ["class", "mean", "class_mean", "attention"])
def test_a_model_without_positions_does_not(pool):
    model = tiny(position="none", pool=pool).double()
    images = pictures(model, dtype=torch.float64)
    torch.testing.assert_close(model(shuffled(model, images)), model(images), atol=1e-12, rtol=1e-12)


@every_position
@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("size", [(16, 40), (24, 24)], ids=str)
def test_dynamic_size_is_a_resized_copy(config, registers, size):
    model = tiny(position=(config,), registers=registers, dynamic_size=True)
    images = torch.randn(2, 3, *size)
    expected = model(images)
    torch.testing.assert_close(copy.deepcopy(model).resize(size)(images), expected, atol=1e-5, rtol=1e-5)


@every_position
def test_resize_says_so_where_weights_were_resampled(config):
    model = tiny(position=(config,))
    learned = any([*module.parameters(recurse=False)] for module in model.modules() if isinstance(module, Gridded))
    if learned:
        with pytest.warns(ResampledNotice, match="24 x 16 to 32 x 16"):
            model.resize((32, 16))
    else:
        model.resize((32, 16))  # silent: a warning would be an error here
    assert model.config.image_size == (32, 16)
    assert model(pictures(model)).shape == (2, 5)


def test_positions_add_up():
    both = tiny(position=("learned", "rope"))
    images, kinds = pictures(both), [config.kind for config in both.config.position]
    assert kinds == ["learned", "rope"]
    learned = tiny(position="learned")
    learned.load_state_dict(both.state_dict(), strict=True)  # rope has no weights
    assert not torch.allclose(learned(images), both(images), atol=1e-3)
