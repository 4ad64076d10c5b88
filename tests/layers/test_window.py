"""Window attention: values by hand, which tokens attend to which, shift, padding, other grids, and cost."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from support.registered import randomise
from support.whole_graph import compiled_whole
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.layers.attention import Site, SoftmaxConfig, WindowAttention, WindowConfig
from vitrail.layers.attention.window import ContinuousBias, TableBias, Windows, fitting, log_offsets

DIM = 8
V2 = {"cosine": True, "relative": "continuous", "bias": "qv"}
PADDINGS = ["masked", "before_shift", "after_shift"]


def layer(grid, *, prefix=0, block=0, **options):
    site = Site(dim=DIM, num_heads=2, grid=grid, num_prefix=prefix, block=block)
    return randomise(WindowConfig(**options).build(site)).double().eval()


def draw(grid, prefix=0):
    return torch.randn(2, prefix + grid[0] * grid[1], DIM, dtype=torch.float64)


def sees(attention, grid, prefix=0):
    """Which tokens each token attends to, by the gradient of its output."""
    tokens = draw(grid, prefix).requires_grad_()
    out = attention(tokens, grid)
    rows = []
    for row in range(tokens.shape[1]):
        (gradient,) = torch.autograd.grad(out[0, row].sum(), tokens, retain_graph=True)
        rows.append(gradient[0].abs().amax(dim=1) > 0)
    return torch.stack(rows)


def test_a_window_by_hand():
    attention = WindowConfig(size=(1, 2)).build(Site(dim=1, num_heads=1, grid=(1, 4)))
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.tensor([[1.0], [1.0], [1.0]]))  # q = k = v = token
        attention.projection.weight.fill_(1.0)
        attention.relative.table.copy_(torch.tensor([[0.5], [0.0], [-0.5]]))  # offsets -1, 0, 1
        for linear in (attention.qkv, attention.projection):
            linear.bias.zero_()
    found = attention(torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]), (1, 4)).flatten().tolist()

    def pair(q, first, second, bias):  # bias of the second key against the first
        share = 1 / (1 + math.exp(q * (first - second) - bias))
        return first + share * (second - first)

    # The first of a pair looks on by -1 (0.5), the second back by 1 (-0.5), both at themselves by 0.
    expected = [pair(1, 1, 2, 0.5), pair(2, 1, 2, 0.5), pair(3, 3, 4, 0.5), pair(4, 3, 4, 0.5)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_cosine_attention_by_hand():
    attention = layer((1, 2), size=(1, 2), cosine=True)
    with torch.no_grad():
        attention.relative.table.zero_()
        attention.log_scale.copy_(torch.tensor([math.log(3.0), 99.0]))  # 99 is held at 100
    tokens = draw((1, 2))
    q, k, _ = attention.heads(tokens)
    cosines = F.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)  # B A 2 2
    expected = (cosines * torch.tensor([3.0, 100.0])[:, None, None]).softmax(dim=-1)
    torch.testing.assert_close(attention.weights(tokens, (1, 2)), expected)


def test_log_offsets_by_hand():
    found = log_offsets((2, 3), trained=(2, 3)).unflatten(0, (3, 5))
    assert found[:, 0, 0].tolist() == pytest.approx([-math.log2(9) / 3, 0.0, math.log2(9) / 3])
    assert found[0, :, 1].tolist() == pytest.approx(
        [-math.log2(9) / 3, -math.log2(5) / 3, 0.0, math.log2(5) / 3, math.log2(9) / 3]
    )
    assert log_offsets((1, 1), trained=(1, 1)).tolist() == [[0.0, 0.0]]


def test_a_trained_window_gives_two_patches_the_same_bias_in_any_other():
    kept, free = (randomise(ContinuousBias(3, trained=trained)) for trained in ((3, 3), None))
    free.load_state_dict(kept.state_dict())
    torch.testing.assert_close(kept((3, 3)), free((3, 3)))
    near = [0, 1, 2, 5, 6, 7, 10, 11, 12]  # 3 x 3 of a window of 5 x 5
    torch.testing.assert_close(kept((5, 5))[:, near][:, :, near], kept((3, 3)))
    assert not torch.allclose(free((5, 5))[:, near][:, :, near], kept((3, 3)))


def test_continuous_bias_is_between_0_and_16_and_moves_to_any_window():
    bias = randomise(ContinuousBias(3))
    assert bias((2, 3)).shape == (3, 6, 6)
    assert bias((4, 1)).shape == (3, 4, 4)
    assert 0 < bias((2, 3)).min() < bias((2, 3)).max() < 16


def test_windows_by_hand():
    whole = Windows((4, 4), (2, 2), (0, 0), "masked")
    patches = torch.arange(16.0)[None, :, None]
    assert whole.cut(patches).flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    assert whole.regions(patches.device) is None
    shifted = Windows((4, 4), (2, 2), (1, 1), "masked")
    assert shifted.cut(patches).flatten().tolist() == [5, 6, 9, 10, 7, 4, 11, 8, 13, 14, 1, 2, 15, 12, 3, 0]
    assert shifted.regions(patches.device).tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 2, 2], [0, 1, 2, 3]]


def test_padding_by_hand():
    patches = torch.arange(1.0, 4.0)[None, :, None]  # 1 2 3 in one row, windows of 2, shifted by 1
    masked, before, after = (Windows((1, 3), (1, 2), (0, 1), padding) for padding in PADDINGS)
    assert masked.cut(patches).flatten().tolist() == [2, 3, 0, 1]
    assert before.cut(patches).flatten().tolist() == [2, 3, 0, 1]
    assert after.cut(patches).flatten().tolist() == [2, 3, 1, 0]
    device = patches.device
    assert masked.regions(device).tolist() == [[0, 0], [4, 1]]
    assert before.regions(device).tolist() == after.regions(device).tolist() == [[0, 0], [0, 1]]
    assert masked.real(device).tolist() == [True, True, False, True]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shift", [(0, 0), (1, 1), (0, 1)])
def test_joining_undoes_cutting(padding, shift):
    windows, patches = Windows((5, 7), (3, 2), shift, padding), torch.randn(2, 35, 4)
    assert windows.cut(patches).shape == (2, 48, 4)
    assert torch.equal(windows.joined(windows.cut(patches)), patches)


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("grid", [(4, 6), (5, 7)], ids=str)
@pytest.mark.parametrize("prefix", [0, 2])
def test_patches_see_their_window_and_the_prefix(block, grid, prefix):
    found = sees(layer(grid, prefix=prefix, block=block, size=(2, 3)), grid, prefix)
    dy, dx = (1, 2) if block else (0, 0)  # shifted windows begin at 1 - 2 and 1 - 3, beyond the edge
    for (row, a), (column, b) in itertools.product(enumerate(itertools.product(*map(range, grid))), repeat=2):
        same = (a[0] + dy) // 2 == (b[0] + dy) // 2 and (a[1] + dx) // 3 == (b[1] + dx) // 3
        assert found[prefix + row, prefix + column] == same, (a, b)
    assert found[:prefix].all()
    assert found[:, :prefix].all()


@pytest.mark.parametrize("options", [{}, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("prefix", [0, 3])
def test_weights_are_what_forward_does(options, block, prefix):
    grid = (5, 7)
    attention, tokens = layer(grid, prefix=prefix, block=block, size=(2, 3), **options), draw(grid, prefix)
    _, _, v = attention.heads(tokens)
    weights = attention.weights(tokens, grid)
    torch.testing.assert_close(attention.joined(weights @ v), attention(tokens, grid))
    assert torch.equal(weights > 0, sees(attention, grid, prefix).expand_as(weights))


def test_one_window_over_all_is_softmax_attention_with_a_bias():
    grid = (3, 4)
    attention, tokens = layer(grid, block=1), draw(grid)
    softmax = SoftmaxConfig().build(Site(dim=DIM, num_heads=2, grid=grid)).double()
    torch.nn.init.zeros_(attention.relative.table)
    softmax.load_state_dict({k: v for k, v in attention.state_dict().items() if not k.startswith("relative")})
    torch.testing.assert_close(attention(tokens, grid), softmax(tokens, grid))


def test_a_window_as_long_as_the_grid_is_not_shifted_along_it():
    attention = layer((4, 9), block=1, size=(4, 4))
    assert attention.windows((4, 9)).shift == (0, 2)
    assert attention.windows((5, 3)).shift == (2, 0)
    assert layer((4, 9), block=1, size=(4, 4), shift=False).windows((9, 9)).shift == (0, 0)
    assert layer((4, 9), block=2, size=(4, 4)).windows((9, 9)).shift == (0, 0)


@pytest.mark.parametrize("padding", ["before_shift", "after_shift"])
def test_padding_that_is_seen_takes_a_share(padding):
    seen, masked = (layer((3, 5), size=(2, 2), padding=each) for each in (padding, "masked"))
    masked.load_state_dict(seen.state_dict())
    tokens = draw((3, 5))
    inside = [0, 1, 2, 3, 5, 6, 7, 8]  # the patches of whole windows
    outside = [index for index in range(15) if index not in inside]
    found, expected = seen(tokens, (3, 5)), masked(tokens, (3, 5))
    torch.testing.assert_close(found[:, inside], expected[:, inside])
    assert ((found - expected)[:, outside].abs().amax(dim=2) > 1e-6).all()
    shares = seen.weights(tokens, (3, 5)).sum(dim=-1)
    torch.testing.assert_close(shares[..., inside], torch.ones(2, 2, 8).double())
    assert (shares[..., outside] < 1 - 1e-6).all()
    torch.testing.assert_close(seen.weights(draw((2, 4)), (2, 4)).sum(dim=-1), torch.ones(2, 2, 8).double())


@pytest.mark.parametrize("options", [{}, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("padding", ["before_shift", "after_shift"])
def test_what_is_missing_from_a_row_went_to_padding(padding, block, prefix, options):
    grid = (3, 5)
    seen, tokens = layer(grid, prefix=prefix, block=block, size=(2, 2), padding=padding, **options), draw(grid, prefix)
    weights = seen.weights(tokens, grid)
    nothing = seen.contents(torch.zeros_like(tokens), grid)  # what a place of padding gives
    mixed = weights @ seen.contents(tokens, grid) + (1 - weights.sum(dim=-1, keepdim=True)) * nothing
    torch.testing.assert_close(seen.joined(mixed), seen(tokens, grid))
    torch.testing.assert_close(weights[:, :, :prefix].sum(dim=-1), torch.ones(2, 2, prefix).double())


def test_the_table_follows_the_window_and_not_the_grid():
    bias = TableBias(2, size=(3, 3), grid=(9, 9))
    table = bias.table
    assert not bias.resized((5, 12))
    assert bias.table is table
    assert bias.grid == (5, 12)
    small = bias((2, 3))
    assert bias.resized((2, 12))
    assert bias.table.shape == (3 * 5, 2)
    assert torch.equal(bias((2, 3)), small)
    assert fitting((3, 3), (2, 12)) == (2, 3)


@pytest.mark.parametrize("block", [0, 1])
def test_patches_ask_those_of_their_window_alone(block):
    grid, tokens = (28, 28), torch.randn(1, 784, 32)
    site = Site(dim=32, num_heads=2, grid=grid, block=block)
    flops = []
    for attention in (WindowConfig().build(site), SoftmaxConfig().build(site)):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            attention(tokens, grid)
        flops.append(counter.get_total_flops() - 2 * 784 * 32 * 4 * 32)  # without the maps of each token
    assert flops == [2 * 2 * 784 * 49 * 32, 2 * 2 * 784 * 784 * 32]


def test_it_stands_in_a_plain_model():
    model = vitrail.create("vit_tiny_patch16", attention={"kind": "window", "size": 4}, depth=2, num_classes=3)
    assert [block.attention.shifts for block in model.blocks] == [False, True]
    assert isinstance(model.blocks[0].attention, WindowAttention)
    assert model(torch.randn(1, 3, 224, 224)).shape == (1, 3)


@pytest.mark.parametrize(("options", "padding"), [({}, "masked"), (V2, "after_shift")], ids=["v1", "v2"])
def test_shifted_and_padded_windows_compile_export_and_take_bfloat16(options, padding):
    grid = (5, 7)
    attention = layer(grid, prefix=1, block=1, size=(2, 3), padding=padding, **options).float()
    tokens = draw(grid, 1).float()
    expected = attention(tokens, grid)
    compiled = compiled_whole(attention)
    torch.testing.assert_close(compiled(tokens, grid), expected)
    shapes = ({0: torch.export.Dim("batch")}, (None, None))
    program = torch.export.export(attention, (tokens, grid), dynamic_shapes=shapes).module()
    three = torch.cat([tokens, tokens[:1]])
    torch.testing.assert_close(program(three, grid), attention(three, grid))
    found = attention.bfloat16()(tokens.bfloat16(), grid).float()
    torch.testing.assert_close(found, expected, atol=0.05 * expected.abs().max().item(), rtol=0.1)


@pytest.mark.parametrize("options", [{}, V2], ids=["v1", "v2"])
def test_shifted_and_padded_windows_have_second_derivatives(options):
    attention, tokens = layer((3, 3), block=1, size=(2, 2), **options), draw((3, 3))[:1].requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have none
        assert torch.autograd.gradcheck(lambda x: attention(x, (3, 3)), (tokens,), fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda x: attention(x, (3, 3)), (tokens,), fast_mode=True)
