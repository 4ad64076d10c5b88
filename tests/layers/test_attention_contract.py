"""What every registered attention mechanism must do, alone and with every position that acts inside it."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from support.allowed import check_allowed
from support.registered import randomise, variants
from support.whole_graph import compiled_whole
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.errors import Unsupported
from vitrail.layers.attention import Attention, AttentionConfig, Site
from vitrail.layers.position import AddedPositionConfig, Gridded, PositionConfig

GRID, BATCH, DIM = (3, 5), 2, 32
WIDE = (9, 11)  # larger than the windows that mechanisms have by default
ALONE = {name: (config, ()) for name, config in variants(AttentionConfig).items()}
INSIDE = {name: p for name, p in variants(PositionConfig).items() if not isinstance(p, AddedPositionConfig)}
PLACED, REFUSED = {}, {}
for kind in AttentionConfig.kinds:
    config = ALONE[kind][0]
    taken = getattr(config.build(Site(dim=DIM, num_heads=2, grid=GRID)), "positions", ())
    for where, position in INSIDE.items():
        (PLACED if position.kind in taken else REFUSED)[f"{kind}+{where}"] = (config, (position,))

CASES = ALONE | PLACED
KINDS = [ALONE[kind] for kind in AttentionConfig.kinds]
SHOWN = {name: case for name, case in CASES.items() if case[0].has_weights}
PADDED = {"window-padding=before_shift"}  # padding takes a share of the weights here
FUSED = {name: case for name, case in CASES.items() if "fused" in {field.name for field in fields(case[0])}}


def every(cases: dict[str, tuple]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


every_case = every(CASES)
every_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])


def make(case: tuple, *, prefix: int = 1, grid: tuple[int, int] = GRID, **changes: object) -> Attention:
    config, positions = case
    # The second block of a stage: where blocks alternate, it is the one with shifted windows.
    site = Site(dim=DIM, num_heads=2, grid=grid, num_prefix=prefix, positions=positions, block=1)
    return randomise(replace(config, **changes).build(site)).eval()


def draw(prefix: int = 1, grid: tuple[int, int] = GRID, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(BATCH, prefix + grid[0] * grid[1], DIM, dtype=dtype)


def test_softmax_is_held_to_everything():
    """What a mechanism says of itself decides which tests it meets; the one that others are measured by meets all."""
    positions = {position.kind for config, (position,) in PLACED.values() if config.kind == "softmax"}
    assert positions >= {"relative", "rope"}
    assert SHOWN.keys() & FUSED.keys() >= {name for name in CASES if name.startswith("softmax")}


def covers_all(option: object) -> bool:
    """Whether a number, or a size in rows and columns, is as large as all patches of these tests."""
    if isinstance(option, tuple):
        return len(option) == 2 and all(covered >= side for covered, side in zip(option, GRID, strict=True))
    return isinstance(option, int) and option >= GRID[0] * GRID[1]


@every({kind: ALONE[kind] for kind in AttentionConfig.kinds})
def test_options_are_smaller_than_the_grid(case):
    """A window that holds every patch, or as many landmarks as patches, is not the mechanism but softmax attention."""
    large = {field.name for field in fields(case[0]) if covers_all(getattr(case[0], field.name))}
    assert not large, f"{case[0].kind}: give {sorted(large)} smaller values in SCALED of tests/support/registered.py"


def test_large_options_are_found():
    assert all(map(covers_all, [64, 15, (7, 7), (3, 5)]))
    assert not any(map(covers_all, [4, 14, (2, 7), (3, 3), 64.0, True, None, "table"]))


@every_case
@every_prefix
def test_builds_and_runs_without_data(case, prefix):
    """On the meta device shapes alone are computed: nothing may be drawn, read or moved elsewhere on the way."""
    config, positions = case
    with torch.device("meta"):
        site = Site(dim=DIM, num_heads=2, grid=GRID, num_prefix=prefix, positions=positions, block=1)
        layer, tokens = config.build(site), draw(prefix)
    assert {tensor.device.type for tensor in layer.state_dict().values()} <= {"meta"}
    mixed = layer(tokens, GRID)
    assert (mixed.device.type, mixed.shape) == ("meta", tokens.shape)


@every(REFUSED)
def test_refused_positions_are_named(case):
    with pytest.raises(Unsupported, match=case[1][0].kind):
        make(case)


@every({name: case for name, case in CASES.items() if name not in SHOWN})
def test_a_mechanism_without_weights_says_why(case):
    layer = make(case)
    with pytest.raises(Unsupported, match=type(layer).__name__):
        layer.weights(draw(), GRID)


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


@every(FUSED)
def test_fused_is_explicit(case):
    fused, explicit = make(case, fused=True).double(), make(case, fused=False).double()
    explicit.load_state_dict(fused.state_dict())
    tokens = draw(dtype=torch.float64)
    torch.testing.assert_close(fused(tokens, GRID), explicit(tokens, GRID), atol=1e-12, rtol=1e-12)


@every(SHOWN)
@every_prefix
def test_weights_are_distributions_and_rows_select(case, prefix):
    layer, tokens = make(case, prefix=prefix).double(), draw(prefix, dtype=torch.float64)
    weights = layer.weights(tokens, GRID)
    n = tokens.shape[1]
    assert weights.shape == (BATCH, 2, n, n)
    assert (weights >= 0).all()
    sums = weights.sum(dim=-1)
    assert sums.max() < 1 + 1e-6
    assert sums.min() > 1 - 1e-6 or case in [CASES[name] for name in PADDED]
    rows = torch.tensor([n - 1, 0, 3])
    torch.testing.assert_close(layer.weights(tokens, GRID, rows), weights[:, :, rows])


# Where keys share patches, or are read beyond the edge, what each patch gives is near, not exact.
NEAR = PADDED | {"reduction-linear=True"} | {name for name in SHOWN if name.startswith("deformable")}


@every({name: SHOWN[name] for name in SHOWN if name not in NEAR})
@every_prefix
def test_weights_times_contents_is_what_is_read(case, prefix):
    layer, tokens, read = make(case, prefix=prefix).double(), draw(prefix, dtype=torch.float64), []
    mixed = (layer.weights(tokens, GRID) @ layer.contents(tokens, GRID)).transpose(1, 2).flatten(2)
    layer.readout.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    layer(tokens, GRID)
    torch.testing.assert_close(mixed, read[0])


@every(ALONE)
def test_without_positions_tokens_are_a_set(case):
    layer, tokens = make(case, grid=WIDE).double(), draw(grid=WIDE, dtype=torch.float64)
    order = torch.randperm(tokens.shape[1])
    same = torch.allclose(layer(tokens[:, order], WIDE), layer(tokens, WIDE)[:, order], atol=1e-12)
    assert same != case[0].ordered


@every(PLACED)
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
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            assert torch.autograd.gradgradcheck(lambda x: layer(x, (1, 2)), (tokens,), fast_mode=True)
    except RuntimeError as error:
        if "grid_sampler_2d_backward is not implemented" not in str(error):
            raise
        pytest.skip("this version of torch has no second derivative of grid_sample")


VARIANTS = {name: case for name, case in CASES.items() if case not in KINDS}
QUICK = {name: case for name, case in CASES.items() if case in KINDS}


def compile_case(case: tuple) -> None:
    layer, tokens = make(case), draw()
    compiled = compiled_whole(layer)
    torch.testing.assert_close(compiled(tokens, GRID), layer(tokens, GRID))


def export_case(case: tuple, size: torch.export.Dim | None) -> None:
    layer, tokens = make(case), draw()
    exported = torch.export.export(layer, (tokens, GRID), dynamic_shapes=({0: size}, (None, None)))
    check_allowed(exported.graph)
    program = exported.module()
    more = draw() if size is None else torch.cat([tokens, draw()])
    torch.testing.assert_close(program(more, GRID), layer(more, GRID))


@every(QUICK)
def test_compiles_whole(case):
    compile_case(case)


@pytest.mark.slow
@every(VARIANTS)
def test_variants_compile_whole(case):  # that they can be traced is seen by their export, below
    compile_case(case)


@every_case
def test_exports(case):
    # Symbols take time: a kind as it stands has them, and its variants take the batch that they were exported with.
    export_case(case, torch.export.Dim("batch") if case in KINDS else None)


@pytest.mark.slow
@every(VARIANTS)
def test_variants_export_with_any_batch(case):
    export_case(case, torch.export.Dim("batch"))


def test_exports_strictly():  # slow, and dynamo's, as above
    layer, tokens = make(CASES["softmax"]), draw()
    program = torch.export.export(layer, (tokens, GRID), strict=True).module()
    torch.testing.assert_close(program(tokens, GRID), layer(tokens, GRID))
