"""What every registered patch embedding, MLP, norm and pool must do."""

import copy
import itertools

import pytest
import torch
from support.registered import randomise, variants
from support.whole_graph import compiled_whole
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.layers.attention import Site
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig
from vitrail.layers.norm import LayerNormConfig, NormConfig
from vitrail.layers.patch import PatchConfig
from vitrail.layers.pool import PoolConfig

DIM, GRID = 16, (3, 2)
# MLPs whose hidden layer mixes neighbours; all others treat tokens independently.
SPATIAL: frozenset[str] = frozenset({"conv_mlp"})
# Patch embeddings with norms over the whole image; in all others a patch depends only on its surroundings.
WHOLE = frozenset({"resnet"})
PATCHES, MLPS, NORMS, POOLS = (variants(base) for base in (PatchConfig, MLPConfig, NormConfig, PoolConfig))


def every(configs: dict) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", configs.values(), ids=configs.keys())


def pool_of(config: PoolConfig) -> nn.Module:
    return randomise(config.build(Site(dim=DIM, num_heads=2, grid=GRID), GeluMLPConfig())).eval()


class OnGrid(nn.Module):
    """A layer that takes the grid too, with its grid filled in."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens, GRID)


def mlp_of(config: MLPConfig, dropout: float = 0.0) -> nn.Module:
    return randomise(OnGrid(config.build(DIM, norm=LayerNormConfig(), dropout=dropout)))


ROLES = {"patch": PATCHES, "mlp": MLPS, "norm": NORMS, "pool": POOLS}


def layer_of(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer by its role and its kind, with arguments that it takes."""
    role, kind = name.split("-", 1)
    config, tokens = ROLES[role][kind], torch.randn(2, 6, DIM)
    match role:
        case "patch":
            layer, arguments = config.build(3, DIM), (torch.randn(2, 3, 96, 64),)
        case "mlp":
            layer, arguments = mlp_of(config), (tokens,)
        case "norm":
            layer, arguments = config.build(DIM), (tokens,)
        case _:
            layer, arguments = pool_of(config), (torch.randn(2, 5, DIM), tokens)
    return randomise(layer).eval(), arguments


every_layer = pytest.mark.parametrize("name", [f"{role}-{kind}" for role, kinds in ROLES.items() for kind in kinds])


@every_layer
def test_gradients_reach_every_parameter_and_the_input(name):
    layer, arguments = layer_of(name)
    arguments = [argument.requires_grad_() for argument in arguments]
    layer(*arguments).pow(3).sum().backward()
    dead = [path for path, p in layer.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not dead
    assert any(argument.grad is not None and argument.grad.abs().max() > 0 for argument in arguments)


@every_layer
def test_samples_stay_apart(name):
    layer, arguments = layer_of(name)
    last = layer(*(argument[1:] for argument in arguments))
    torch.testing.assert_close(last, layer(*arguments)[1:], atol=1e-5, rtol=1e-5)


@every_layer
def test_state_dict_and_deepcopy_keep_it(name):
    layer, arguments = layer_of(name)
    fresh, _ = layer_of(name)
    if any(True for _ in layer.parameters()):
        assert not torch.equal(fresh(*arguments), layer(*arguments))
    fresh.load_state_dict(layer.state_dict(), strict=True)
    for twin in (layer, fresh, copy.deepcopy(layer)):
        assert torch.equal(twin(*arguments), layer(*arguments))


@every_layer
def test_bfloat16_is_near_float32(name):
    layer, arguments = layer_of(name)
    expected = layer(*arguments)
    found = layer.bfloat16()(*(argument.bfloat16() for argument in arguments))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0.1)


@every_layer
def test_compiles_whole(name):
    layer, arguments = layer_of(name)
    compiled = compiled_whole(layer)
    torch.testing.assert_close(compiled(*arguments), layer(*arguments))


@every_layer
def test_exports_with_any_batch(name):
    layer, arguments = layer_of(name)
    shapes = ({0: torch.export.Dim("batch")},) * len(arguments)
    program = torch.export.export(layer, arguments, dynamic_shapes=shapes).module()
    more = [torch.cat([argument, argument[:1]]) for argument in arguments]
    torch.testing.assert_close(program(*more), layer(*more))


@every(PATCHES)
@pytest.mark.parametrize("channels", [1, 4, 13])
@pytest.mark.parametrize("size", [(96, 64), (32, 128)], ids=str)
def test_patch_gives_the_grid_it_promised(config, channels, size):
    tokens = config.build(channels, DIM)(torch.randn(2, channels, *size))
    rows, columns = config.grid(size)
    assert tokens.shape == (2, rows * columns, DIM)


@every(PATCHES)
def test_patch_counts_rows_first(config):
    layer, size = randomise(config.build(3, DIM)).eval(), (96, 64)
    rows, columns = config.grid(size)
    lit = torch.zeros(rows * columns + 1, 3, *size)  # one image a patch, with one bright pixel; the last is dark
    for number, (row, column) in enumerate(itertools.product(range(rows), range(columns))):
        lit[number, :, int((row + 0.5) * size[0] / rows), int((column + 0.5) * size[1] / columns)] = 1
    tokens = layer(lit)
    changed = (tokens[:-1] - tokens[-1]).norm(dim=2) > 1e-6
    assert changed.diagonal().all()
    if config.kind not in WHOLE:
        assert (changed.sum(dim=1) < rows * columns).all()  # a patch is a part of the image


@every(PATCHES)
def test_patch_names_a_size_that_fits(config):
    with pytest.raises(InputError, match="97 x 64") as caught:
        config.grid((97, 64))
    height, width = str(caught.value).split()[-3], str(caught.value).split()[-1]
    assert config.grid((int(height), int(width)))


@every(MLPS)
def test_mlp_treats_tokens_alone(config):
    layer = mlp_of(config).double()
    tokens = torch.randn(2, 6, DIM, dtype=torch.float64)
    assert layer(tokens).shape == tokens.shape
    louder = tokens.clone()
    louder[:, 0] += 1
    alone = torch.equal(layer(louder)[:, 1:], layer(tokens)[:, 1:])
    assert alone == (config.kind not in SPATIAL)
    assert not torch.allclose(layer(2 * tokens), 2 * layer(tokens))  # not linear


@every(MLPS)
def test_mlp_drops_in_training_alone(config):
    layer = mlp_of(config, dropout=0.5)
    tokens = torch.randn(2, 6, DIM)
    assert not torch.equal(layer(tokens), layer(tokens))
    layer.eval()
    assert torch.equal(layer(tokens), layer(tokens))


@every(NORMS)
def test_norm_forgets_the_scale(config):
    layer, x = randomise(config.build(DIM)).double(), torch.randn(3, DIM, dtype=torch.float64)
    assert layer(x).shape == x.shape
    torch.testing.assert_close(layer(100 * x), layer(x), atol=1e-5, rtol=1e-4)


@every(POOLS)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_pool_gives_the_width_it_promised(config, prefix):
    if config.needs_class_token and prefix == 0:
        pytest.skip("there is no class token to read")
    pooled = pool_of(config)(torch.randn(2, prefix, DIM), torch.randn(2, 6, DIM))
    assert pooled.shape == (2, config.width(DIM))


@every(POOLS)
def test_pool_takes_patches_in_any_order(config):
    layer, prefix, patches = pool_of(config), torch.randn(2, 5, DIM), torch.randn(2, 6, DIM)
    torch.testing.assert_close(layer(prefix, patches[:, torch.randperm(6)]), layer(prefix, patches))


@every(POOLS)
def test_pool_reads_the_class_token_or_none(config):
    layer, prefix, patches = pool_of(config), torch.randn(2, 5, DIM), torch.randn(2, 6, DIM)
    first, rest = prefix.clone(), prefix.clone()
    first[:, 0] += 1
    rest[:, 1:] += 1
    assert torch.equal(layer(rest, patches), layer(prefix, patches))
    assert torch.equal(layer(first, patches), layer(prefix, patches)) != config.needs_class_token
