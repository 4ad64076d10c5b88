"""Products in 8 bits: every way computes the same product, and images are moved without changing their size."""

import torch
from support.benchmarks import benchmark as load_benchmark
from support.eight_bits import needs_products

benchmark = load_benchmark("fp8")


@needs_products
def test_every_way_computes_the_product():
    torch.manual_seed(0)
    tokens, weight = torch.randn(32, 64).bfloat16(), torch.randn(48, 64).bfloat16()
    exact = tokens.float() @ weight.float().t()
    found = {name: benchmark.distance(run(), exact) for name, run in benchmark.ways(tokens, weight).items()}
    assert found.pop("bf16") < 0.01
    assert len(found) == 4
    assert all(0.01 < error < 0.05 for error in found.values())


def test_images_are_moved_and_mirrored():
    image = torch.arange(3 * 8 * 6, dtype=torch.uint8).view(3, 8, 6)
    found = benchmark.moved([image])
    assert len(found) == 50
    assert all(one.shape == image.shape for one in found)
    assert sum(torch.equal(one, image) for one in found) == 1
    assert sum(torch.equal(one, image.flip(-1)) for one in found) == 1
