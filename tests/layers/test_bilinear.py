"""Resized maps: matrix products give what torch's operator gives, and its gradient."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.layers.bilinear import by_products, resized


@pytest.mark.parametrize(
    ("before", "after"), [((3, 4), (6, 8)), ((5, 7), (13, 9)), ((8, 6), (3, 5)), ((1, 1), (4, 4)), ((4, 4), (4, 4))]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_products_are_interpolation(before, after, layout):
    torch.manual_seed(0)
    maps = torch.randn(2, 3, *before, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    expected = F.interpolate(maps, size=after, mode="bilinear", align_corners=False)
    found = by_products(maps, after)
    torch.testing.assert_close(found, expected)
    assert torch.equal(resized(maps, after), expected)
    grad = torch.randn_like(expected)
    (one,), (other,) = (torch.autograd.grad(value, maps, grad) for value in (expected, found))
    torch.testing.assert_close(other, one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sixteen_bits_on_a_gpu():
    torch.manual_seed(0)
    maps = torch.randn(2, 8, 12, 15, device="cuda")
    for dtype, limit in ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        found = resized(maps.to(dtype), (23, 30))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), resized(maps, (23, 30)), atol=limit, rtol=limit)
