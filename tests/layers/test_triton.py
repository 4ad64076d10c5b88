"""The Triton kernels against PyTorch in float64: on a GPU if there is one, else with Triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F

from vitrail.layers import triton_deformable, triton_gelu, triton_join, triton_norm, triton_rows, triton_windows
from vitrail.layers.attention import Site, WindowConfig
from vitrail.layers.attention.deformable_multiscale import sampled
from vitrail.layers.fp8 import LEAST, TOP, Rows

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # in the interpreter
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes bfloat16 products as integers.
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3} | ({torch.bfloat16: 1e-2} if DEVICE == "cuda" else {})
SITES = [  # grid, window, block, heads, size of a head
    ((14, 14), (7, 7), 1, 2, 16),
    ((6, 9), (3, 3), 1, 1, 32),
    ((4, 6), (2, 3), 0, 3, 16),
    ((7, 7), (7, 7), 1, 1, 16),
    ((1, 65), (1, 65), 0, 1, 16),
]
LEVELS = [  # grids, queries, heads, size of a head, points
    ([(5, 7), (3, 2), (1, 1)], 37, 2, 8, 2),
    ([(4, 6)], 5, 3, 64, 1),
    ([(6, 4), (1, 2)], 33, 1, 32, 3),
    ([(2, 3), (16, 1)], 1, 2, 16, 1),
]


@pytest.fixture(autouse=True)
def runnable():
    pytest.importorskip("triton", reason="Triton is not installed")
    if DEVICE == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("no GPU; TRITON_INTERPRET=1 runs the kernels in Triton's interpreter")
        try:
            triton_gelu.forward(torch.zeros(1, 16), torch.zeros(16))
        except Exception as error:  # that of Triton 3.6 needs numpy < 2.4
            pytest.skip(f"Triton's interpreter does not run with these versions: {error}")


def distance(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("shape", [(3, 7, 40), (2, 5, 129), (33, 256), (1, 1, 16)], ids=str)
def test_gelu(dtype, shape):
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, device=DEVICE).mul(2).to(dtype) for _ in range(2))
    bias = torch.randn(shape[-1], device=DEVICE)
    exact_x, exact_bias = x.double().requires_grad_(), bias.double().requires_grad_()
    expected = F.gelu(exact_x + exact_bias)
    expected.backward(grad.double())
    grad_x, grad_bias = triton_gelu.backward(grad, x, bias)
    assert distance(triton_gelu.forward(x, bias), expected) < LIMITS[dtype]
    assert distance(grad_x, exact_x.grad) < LIMITS[dtype]
    assert distance(grad_bias, exact_bias.grad) < 1e-5


def test_gelu_of_extreme_values():
    x = torch.tensor([-1e4, -50.0, -12.0, -6.0, 0.0, 6.0, 12.0, 50.0, 1e4], device=DEVICE)
    bias = torch.zeros(9, device=DEVICE)
    grad_x, _ = triton_gelu.backward(torch.ones_like(x), x, bias)
    torch.testing.assert_close(triton_gelu.forward(x, bias), F.gelu(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grad_x, torch.tensor([0.0] * 4 + [0.5] + [1.0] * 4, device=DEVICE), atol=1e-5, rtol=0)


def differing(found, expected):
    """The share of numbers in 8 bits that differ; the interpreter halves those that round up to a power of two."""
    found, expected = found.float(), expected.float()
    wrong = found != expected
    return (wrong if DEVICE == "cuda" else wrong & (2 * found != expected)).float().mean().item()


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("shape", [(5, 768), (3, 2, 40), (7, 3072), (2, 16), (33, 129), (3, 1024)], ids=str)
def test_rows_in_8_bits(dtype, shape):
    """A row of zeros is among them; GELU differs by the fit of its function, so that some numbers round otherwise."""
    torch.manual_seed(0)
    x, bias = torch.randn(shape, device=DEVICE).mul(2).to(dtype), torch.randn(shape[-1], device=DEVICE)
    x[0] = 0
    values, scale = triton_rows.rows_of(x)
    expected = Rows.of(x.cpu())
    assert differing(values.cpu(), expected.values) < 2e-3  # products in another order
    torch.testing.assert_close(scale.cpu(), expected.scale, rtol=1e-6, atol=0)
    activated = F.gelu(x.float() + bias).cpu()
    for keep in (True, False):
        out, values, scale = triton_rows.gelu_rows(x, bias, keep=keep)
        expected = Rows.of(activated)
        assert differing(values.cpu(), expected.values) < 0.02
        torch.testing.assert_close(scale.cpu(), expected.scale, rtol=1e-4, atol=0)
        assert out.shape == (shape if keep else (0,))
        assert not keep or distance(out.cpu(), activated.double()) < LIMITS[dtype]
    assert (triton_rows.LEAST, triton_rows.TOP) == (LEAST, TOP)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter: infinity times zero
def test_rows_that_are_not_finite_stay_so():
    x = torch.ones(3, 48, device=DEVICE)
    x[0, 3], x[1, 40] = torch.inf, torch.nan
    values, scale = triton_rows.rows_of(x)
    finite = (values.float() * scale).isfinite().all(dim=1).tolist()
    assert finite == [False, DEVICE == "cpu", True]  # the interpreter casts NaN to a number


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_windows(dtype, biased, site):
    torch.manual_seed(0)
    grid, size, block, heads, width = site
    layer = WindowConfig(size=size).build(Site(heads * width, heads, grid, block=block)).double().to(DEVICE)
    layer.relative.table.data.normal_(std=float(biased))
    windows = layer.windows(grid)
    bias = layer.relative(windows.size).detach().requires_grad_()  # A w w
    layer.relative.forward = lambda _: bias
    qkv = torch.randn(2, grid[0] * grid[1], 3 * heads * width, device=DEVICE).to(dtype)
    grad = torch.randn(2, grid[0] * grid[1], heads * width, device=DEVICE).to(dtype)
    exact = qkv.double().requires_grad_()
    q, k, v = (layer.split(part) for part in windows.cut(exact).chunk(3, dim=-1))
    expected = windows.joined(layer._within(q, k, v, windows, 0))
    expected.backward(grad.double())
    given = bias.detach().float().contiguous() if biased else None
    options = (given, heads, triton_windows.Windows(*windows[:3]), layer.scale)
    grad_qkv, grad_bias = triton_windows.backward(grad, qkv, *options)
    assert distance(triton_windows.forward(qkv, *options), expected) < LIMITS[dtype]
    assert distance(grad_qkv, exact.grad) < LIMITS[dtype]
    assert grad_bias.numel() == 0 if not biased else distance(grad_bias, bias.grad) < 1e-4


def level_inputs(levels, dtype):
    torch.manual_seed(0)
    grids, queries, heads, width, points = levels
    count = sum(rows * columns for rows, columns in grids)
    values, grad = (torch.randn(2, one, heads, width, device=DEVICE).to(dtype) for one in (count, queries))
    points = torch.rand(2, queries, heads, len(grids), points, 2, device=DEVICE) * 1.6 - 0.3  # some are outside
    shares = torch.rand(points.shape[:-1], device=DEVICE)
    return values, points, shares, grad


def plain_levels(values, points, shares, grad, grids):
    """The output and the three gradients of the layer's own operators, in float64."""
    leaves = [one.double().requires_grad_() for one in (values, points, shares)]
    found = sampled(leaves[0].transpose(1, 2), *leaves[1:], grids)
    return [found.detach(), *torch.autograd.grad(found, leaves, grad.double())]


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("levels", LEVELS, ids=str)
def test_deformable(dtype, levels):
    *inputs, grad = level_inputs(levels, dtype)
    output, *gradients = plain_levels(*inputs, grad, levels[0])
    assert distance(triton_deformable.forward(*inputs, levels[0]), output) < LIMITS[dtype]
    for found, expected, limit in zip(
        triton_deformable.backward(grad, *inputs, levels[0]), gradients, (LIMITS[dtype], 1e-5, 1e-5), strict=True
    ):
        assert distance(found, expected) < limit


def test_deformable_with_shares_of_half_precision():
    values, points, shares, grad = level_inputs(LEVELS[1], torch.float16)
    inputs = values, points, shares.half()
    _, *gradients = plain_levels(*inputs, grad, LEVELS[1][0])
    for found, expected, given in zip(
        triton_deformable.backward(grad, *inputs, LEVELS[1][0]), gradients, inputs, strict=True
    ):
        assert found.dtype == given.dtype
        assert distance(found, expected) < LIMITS[found.dtype]


def test_deformable_at_edges_and_far_outside():
    """Pixel centres, the edges of the map, a pixel outside of them, and points at infinity."""
    line = torch.tensor([-torch.inf, -1e30, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 1e30, torch.inf])
    points = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).view(1, -1, 1, 1, 1, 2).to(DEVICE)
    values, grad = (torch.randn(1, one, 1, 8, device=DEVICE) for one in (4, points.shape[1]))
    inputs = values, points, torch.ones(points.shape[:-1], device=DEVICE)
    known = points.isfinite().all(dim=-1).flatten()
    finite = values, points[:, known], inputs[2][:, known]
    output, *expected = plain_levels(*finite, grad[:, known], [(2, 2)])
    found = triton_deformable.forward(*inputs, [(2, 2)])
    gradients = triton_deformable.backward(grad, *inputs, [(2, 2)])
    assert not found[:, ~known].any()
    for one in gradients[1:]:
        assert not one[:, ~known].any()
    torch.testing.assert_close(found[:, known], output.float(), atol=1e-6, rtol=1e-6)
    for one, other in zip((gradients[0], gradients[1][:, known], gradients[2][:, known]), expected, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-5, rtol=1e-5)


def seed_of(number):
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def test_dropout_of_gelu_is_the_same_in_both_passes():
    """What is dropped shows in the output; the gradient is that of the same mask."""
    torch.manual_seed(0)
    x, grad = (torch.randn(50, 384, device=DEVICE) for _ in range(2))
    bias, rate = torch.randn(384, device=DEVICE), 0.3
    found = triton_gelu.forward(x, bias, seed_of(5), rate)
    mask = (found != 0) / (1 - rate)
    exact_x, exact_bias = x.double().requires_grad_(), bias.double().requires_grad_()
    expected = F.gelu(exact_x + exact_bias) * mask
    expected.backward(grad.double())
    grad_x, grad_bias = triton_gelu.backward(grad, x, bias, seed_of(5), rate)
    assert distance(found, expected) < 1e-5
    assert distance(grad_x, exact_x.grad) < 1e-5
    assert distance(grad_bias, exact_bias.grad) < 1e-5
    assert torch.equal(found, triton_gelu.forward(x, bias, seed_of(5), rate))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_what_is_dropped_looks_random(rate):
    """The share, and that of neighbours, of other rows and of other seeds; standard errors are 0.002 at most."""
    ones, bias = torch.full((256, 512), 3.0, device=DEVICE), torch.zeros(512, device=DEVICE)
    masks = [triton_gelu.forward(ones, bias, seed_of(seed), rate) == 0 for seed in (0, 1, 123_456_789)]
    first = masks[0]
    pairs = [first[:, 1:] & first[:, :-1], first[1:] & first[:-1], *(first & other for other in masks[1:])]
    assert all(abs(mask.float().mean().item() - rate) < 0.008 for mask in masks)
    assert all(abs(pair.float().mean().item() - rate**2) < 0.008 for pair in pairs)
    assert (first.float().mean(0) - rate).abs().max() < 6 * (rate * (1 - rate) / 256) ** 0.5
    assert (first.float().mean(1) - rate).abs().max() < 6 * (rate * (1 - rate) / 512) ** 0.5


@pytest.mark.parametrize(("heads", "width", "tokens"), [(2, 32, 19), (1, 64, 50)])
def test_dropout_of_attention_is_the_same_in_both_passes(heads, width, tokens):
    """Values that are one for a token each show which weights are kept; the gradients are those of the same mask."""
    torch.manual_seed(0)
    shape, rate, scale = (2, tokens), 0.4, width**-0.5
    qkv, grad = (torch.randn(*shape, times * heads * width, device=DEVICE) for times in (3, 1))
    size = (1, tokens)
    windows, dropout = triton_windows.Windows(size, size, (0, 0)), triton_windows.Dropout(seed_of(9), rate)

    def split(part):
        return part.unflatten(2, (heads, width)).transpose(1, 2)  # B A N d

    probe = qkv.clone()
    probe[..., 2 * heads * width :] = torch.eye(tokens, width, device=DEVICE).repeat(1, heads)
    seen = split(triton_windows.forward(probe, None, heads, windows, scale, dropout))[..., :tokens]
    mask = (seen != 0).double() / (1 - rate)  # B A N N
    assert abs((mask > 0).double().mean().item() - (1 - rate)) < 0.06
    exact = qkv.double().requires_grad_()
    q, k, v = (split(part) for part in exact.chunk(3, dim=-1))
    expected = ((((q * scale) @ k.transpose(-2, -1)).softmax(dim=-1) * mask) @ v).transpose(1, 2).flatten(2)
    expected.backward(grad.double())
    grad_qkv, _ = triton_windows.backward(grad, qkv, None, heads, windows, scale, dropout)
    assert distance(triton_windows.forward(qkv, None, heads, windows, scale, dropout), expected) < 1e-5
    assert distance(grad_qkv, exact.grad) < 1e-5


def norm_inputs(shape, dtype, *, stream, scaled):
    torch.manual_seed(0)
    x, grad = (torch.randn(shape, device=DEVICE).add(0.5).to(stream) for _ in range(2))
    branch, grad_normed = (torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))
    bias, gain, weight, norm_bias = torch.randn(4, shape[-1], device=DEVICE)
    keep = torch.tensor([1.25, 0.0, 1.25][: shape[0]], device=DEVICE)
    return (x, branch, bias, *((gain, keep) if scaled else (None, None)), weight, norm_bias), grad, grad_normed


def plain_norm(x, branch, bias, gain, keep, weight, norm_bias):
    """The sum and its norm."""
    added = branch + bias
    added = added if gain is None else added * gain * keep[:, None, None]
    return x + added, F.layer_norm(x + added, x.shape[-1:], weight, norm_bias, 1e-6)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "gain and keep"])
@pytest.mark.parametrize("wide", [True, False], ids=["stream of 32 bits", "stream of 16 bits"])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 5, 192), (2, 7, 384), (3, 1, 768), (1, 2, 1024), (2, 3, 40), (1, 1, 1300)], ids=str
)
def test_add_norm(dtype, shape, wide, scaled):
    inputs, grad, grad_normed = norm_inputs(shape, dtype, stream=torch.float32 if wide else dtype, scaled=scaled)
    exact = [None if one is None else one.double().requires_grad_(one.ndim > 0) for one in inputs]
    sums, normed = plain_norm(*exact)
    leaves = [one for index, one in enumerate(exact) if one is not None and index != 4]
    expected = torch.autograd.grad([sums, normed], leaves, [grad.double(), grad_normed.double()])
    found = triton_norm.forward(*inputs, 1e-6)
    limit = LIMITS[dtype]
    assert [one.dtype for one in found[:2]] == [inputs[0].dtype, dtype]
    assert distance(found[0], sums) < (1e-5 if wide else limit)
    assert distance(found[1], normed) < limit
    _, branch, bias, gain, keep, weight, _ = inputs
    of_x, of_branch, of_parameters = triton_norm.backward(
        grad, grad_normed, found[0], found[2], None if gain is None else branch, bias, gain, keep, weight,
        shared=(shared := not (wide or scaled)),
    )  # fmt: skip
    of_branch = of_x if shared else of_branch
    assert distance(of_x, expected[0]) < (1e-5 if wide else limit)
    assert distance(of_branch, expected[1]) < limit
    names = (0, 3, 1, 2) if scaled else (0, 1, 2)  # bias, gain, weight, bias of the norm, as the arguments have them
    for index, one in zip(names, expected[2:], strict=True):
        assert distance(of_parameters[index], one) < (1e-5 if wide else limit)


def test_add_norm_without_a_gradient_of_the_sum():
    inputs, grad, grad_normed = norm_inputs((2, 5, 192), torch.float32, stream=torch.float32, scaled=False)
    added, _, statistics = triton_norm.forward(*inputs, 1e-6)
    given = grad_normed, added, statistics, None, inputs[2], None, None, inputs[5]
    found, expected = (triton_norm.backward(one, *given, shared=True) for one in (None, torch.zeros_like(grad)))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 7, 16), (1, 12, 19, 64), (3, 1, 5, 40)], ids=str)
def test_joined_heads(dtype, shape):
    """Gradients as attention leaves them, token by token in memory, and in any other order."""
    torch.manual_seed(0)
    batch, heads, tokens, width = shape
    parts = [torch.randn(batch, tokens, heads, width, device=DEVICE).to(dtype).transpose(1, 2) for _ in range(2)]
    parts.append(torch.randn(shape, device=DEVICE).to(dtype))
    expected = torch.cat([part.transpose(1, 2).flatten(2) for part in parts], dim=-1)
    joined, summed = triton_join.join_heads(*parts)
    assert torch.equal(joined, expected)
    assert distance(summed, expected.double().sum((0, 1))) < 1e-5
