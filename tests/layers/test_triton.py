"""The Triton kernels against PyTorch in float64: on a GPU if there is one, else with Triton's interpreter."""

import os

import pytest
import torch
import torch.nn.functional as F

from vitrail.layers import triton_gelu, triton_windows
from vitrail.layers.attention import Site, WindowConfig

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
