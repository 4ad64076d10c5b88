"""What every registered attention mechanism must do, alone and with every position that acts inside it."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from registered import randomise, variants
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.errors import Unsupported
from vitrail.layers.attention import Attention, AttentionConfig, Site
from vitrail.layers.position import AddedPositionConfig, Gridded, PositionConfig

# Mechanisms that read the order of the tokens by design (windows, learned projections over N). All others see a set.
ORDERED: frozenset[str] = frozenset(
    {
        "biased",
        "block_diagonal",
        "conv_projection",
        "deformable",
        "dilated",
        "linformer",
        "local",
        "neighbourhood",
        "reduction",
        "window",
    }
)

GRID, BATCH, DIM = (3, 5), 2, 32
WIDE = (9, 11)  # larger than the windows that mechanisms have by default
ALONE = {name: (config, ()) for name, config in variants(AttentionConfig).items()}
PLACED, REFUSED = {}, {}
for kind in AttentionConfig.kinds:
    for where, position in variants(PositionConfig).items():
        if isinstance(position, AddedPositionConfig):
            continue
        case = (AttentionConfig.kinds[kind](), (position,))
        try:
            case[0].build(Site(dim=DIM, num_heads=2, grid=GRID, num_prefix=1, positions=case[1]))
        except Unsupported as error:
            REFUSED[f"{kind}+{where}"] = (position, error)
        else:
            PLACED[f"{kind}+{where}"] = case

CASES = ALONE | PLACED
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])


def make(case: tuple, *, prefix: int = 1, grid: tuple[int, int] = GRID, **changes: object) -> Attention:
    config, positions = case
    site = Site(dim=DIM, num_heads=2, grid=grid, num_prefix=prefix, positions=positions)
    return randomise(replace(config, **changes).build(site)).eval()


def draw(prefix: int = 1, grid: tuple[int, int] = GRID, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(BATCH, prefix + grid[0] * grid[1], DIM, dtype=dtype)


def weights_of(layer: Attention, tokens: Tensor, **keywords: Tensor) -> Tensor:
    try:
        return layer.weights(tokens, GRID, **keywords)
    except Unsupported as error:
        assert type(layer).__name__ in str(error)
        pytest.skip(str(error))


def test_refused_positions_are_named():
    for position, error in REFUSED.values():
        assert position.kind in str(error)


@every_case
@every_prefix
def test_keeps_shapes_and_samples_apart(case, prefix):
    layer, tokens = make(case, prefix=prefix), draw(prefix)
    mixed = layer(tokens, GRID)
    assert mixed.shape == tokens.shape
    assert not torch.allclose(mixed, tokens)
    torch.testing.assert_close(layer(tokens[1:], GRID), mixed[1:], atol=1e-5, rtol=1e-5)


@every_case
@every_prefix
def test_gradients_reach_every_parameter_and_token(case, prefix):
    layer, tokens = make(case, prefix=prefix).train(), draw(prefix).requires_grad_()
    layer(tokens, GRID).square().sum().backward()
    gradients = {"tokens": tokens.grad} | {name: parameter.grad for name, parameter in layer.named_parameters()}
    dead = [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > 0]
    assert not dead


@every_case
def test_every_token_hears_another(case):
    layer, tokens = make(case), draw()
    louder = tokens.clone()
    louder[:, -1] += 1
    changed = (layer(louder, GRID) - layer(tokens, GRID)).abs().amax(dim=(0, 2))
    assert (changed > 0).sum() > 1


@every_case
def test_fused_is_explicit(case):
    if "fused" not in {field.name for field in fields(case[0])}:
        pytest.skip("this mechanism has one way only")
    fused, explicit = make(case, fused=True).double(), make(case, fused=False).double()
    explicit.load_state_dict(fused.state_dict())
    tokens = draw(dtype=torch.float64)
    torch.testing.assert_close(fused(tokens, GRID), explicit(tokens, GRID), atol=1e-12, rtol=1e-12)


@every_case
@every_prefix
def test_weights_are_distributions_and_rows_select(case, prefix):
    layer, tokens = make(case, prefix=prefix).double(), draw(prefix, dtype=torch.float64)
    weights = weights_of(layer, tokens)
    n = tokens.shape[1]
    assert weights.shape == (BATCH, 2, n, n)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, 2, n, dtype=torch.float64))
    rows = torch.tensor([n - 1, 0, 3])
    torch.testing.assert_close(weights_of(layer, tokens, rows=rows), weights[:, :, rows])


@every_case
@every_prefix
def test_weights_times_contents_is_what_is_read(case, prefix):
    layer, tokens, read = make(case, prefix=prefix).double(), draw(prefix, dtype=torch.float64), []
    if getattr(case[0], "linear", False) or case[0].kind == "deformable":
        pytest.skip("keys share patches, or are read beyond the edge: what each patch gives is near, not exact")
    mixed = (weights_of(layer, tokens) @ layer.contents(tokens, GRID)).transpose(1, 2).flatten(2)
    layer.readout.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    layer(tokens, GRID)
    torch.testing.assert_close(mixed, read[0])


@pytest.mark.parametrize("case", ALONE.values(), ids=ALONE.keys())
def test_without_positions_tokens_are_a_set(case):
    layer, tokens = make(case, grid=WIDE).double(), draw(grid=WIDE, dtype=torch.float64)
    order = torch.randperm(tokens.shape[1])
    same = torch.allclose(layer(tokens[:, order], WIDE), layer(tokens, WIDE)[:, order], atol=1e-12)
    assert same == (case[0].kind not in ORDERED)


@pytest.mark.parametrize("case", PLACED.values(), ids=PLACED.keys())
def test_with_positions_they_are_not(case):
    layer, tokens = make(case).double(), draw(dtype=torch.float64)
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(tokens.shape[1] - 1)])
    assert not torch.allclose(layer(tokens[:, order], GRID), layer(tokens, GRID)[:, order], atol=1e-3)


@every_case
def test_state_dict_and_deepcopy_keep_it(case):
    layer, tokens = make(case), draw()
    other = make(case)
    assert not torch.equal(other(tokens, GRID), layer(tokens, GRID))
    other.load_state_dict(layer.state_dict(), strict=True)
    for twin in (layer, other, copy.deepcopy(layer)):
        assert torch.equal(twin(tokens, GRID), layer(tokens, GRID))


@every_case
@pytest.mark.parametrize("mode", ["cast", "autocast"])
def test_bfloat16_is_near_float32(case, mode):
    layer, tokens = make(case), draw()
    expected = layer(tokens, GRID)
    if mode == "cast":
        found = layer.bfloat16()(tokens.bfloat16(), GRID)
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer(tokens, GRID)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0.1)


@every_case
def test_moves_to_another_grid(case):
    layer, tokens = make(case), draw(grid=(4, 2))
    expected = layer(tokens, (4, 2))
    for module in layer.modules():
        if isinstance(module, Gridded):
            module.resize((4, 2))
            assert module.grid == (4, 2)
    torch.testing.assert_close(layer(tokens, (4, 2)), expected)
    assert layer(draw(), GRID).shape == draw().shape


@every_case
def test_gradients_have_gradients(case):
    layer = make(case, grid=(1, 2)).double()
    tokens = draw(grid=(1, 2), dtype=torch.float64).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        assert torch.autograd.gradgradcheck(lambda x: layer(x, (1, 2)), (tokens,), fast_mode=True)


@every_case
def test_compiles_whole(case):
    layer, tokens = make(case), draw()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens, GRID), layer(tokens, GRID))


@every_case
def test_exports_with_any_batch(case):
    layer, tokens = make(case), draw()
    shapes = ({0: torch.export.Dim("batch")}, (None, None))
    program = torch.export.export(layer, (tokens, GRID), dynamic_shapes=shapes, strict=True).module()
    more = torch.cat([tokens, draw()])
    torch.testing.assert_close(program(more, GRID), layer(more, GRID))
