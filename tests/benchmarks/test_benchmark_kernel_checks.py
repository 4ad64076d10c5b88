"""The checks of kernels alone: how far off a result is, and what fails does not end the rest."""

import pytest
import torch
from support.benchmarks import benchmark as load_benchmark
from support.on_cpu import operators_on_cpu

benchmark = load_benchmark("kernel_checks")


def test_distance_is_relative():
    assert benchmark.distance(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == 0.1


def test_what_fails_is_a_row_with_its_error():
    assert benchmark.tried("one", lambda: [{"ms": 1.0}]) == [{"ms": 1.0}]
    (row,) = benchmark.tried("other", lambda: 1 / 0)
    assert row == {"name": "other", "error": "division by zero"}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("stream", [torch.float32, torch.float16])
def test_norms_are_compared_with_what_they_replace(monkeypatch, stream, scaled):
    norms = benchmark.norm_checks
    monkeypatch.setattr(norms, "DEVICE", "cpu")
    with operators_on_cpu(monkeypatch):
        found, expected, same = norms.compared((2, 3, 16), torch.float16, stream, scaled=scaled)
        runs = norms.passes(norms.fused, (2, 3, 16), torch.bfloat16)
    assert same
    assert len(found) == (8 if scaled else 7)  # the sum, its norm, five gradients or six
    assert all(benchmark.distance(one, other) < 2e-3 for one, other in zip(found, expected, strict=True))
    assert [size for _, _, size in runs] == [8 * 96, 8 * 96]
