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
    grad = torch.randn_like(expected)
    (one,), (other,) = (torch.autograd.grad(value, maps, grad) for value in (expected, found))
    torch.testing.assert_close(other, one)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_sixteen_bits(dtype, limit):
    torch.manual_seed(0)
    maps = torch.randn(2, 8, 12, 15)
    found, expected = by_products(maps.to(dtype), (23, 30)), by_products(maps, (23, 30))
    assert found.dtype == dtype
    assert (found.float() - expected).abs().max() < limit * expected.abs().max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.02), (torch.float32, 1e-5)])
def test_maps_on_a_gpu_have_the_gradient_of_the_reference(dtype, limit):
    torch.manual_seed(0)
    maps = torch.randn(2, 8, 12, 15, device="cuda").to(dtype).requires_grad_()
    with torch.autocast("cuda", torch.float16):
        found = resized(maps, (23, 30))
    assert found.dtype == dtype
    grad = torch.randn(2, 8, 23, 30, device="cuda").to(dtype)
    exact = maps.detach().double().requires_grad_()
    expected = F.interpolate(exact, size=(23, 30), mode="bilinear", align_corners=False)
    (one,) = torch.autograd.grad(expected, exact, grad.double())
    (other,) = torch.autograd.grad(found, maps, grad)
    assert (one - other.double()).abs().max() < limit * one.abs().max()
