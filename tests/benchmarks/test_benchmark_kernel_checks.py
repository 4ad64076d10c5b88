"""The checks of kernels alone: how far off a result is, and what fails does not end the rest."""

import torch
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("kernel_checks")


def test_distance_is_relative():
    assert benchmark.distance(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == 0.1


def test_what_fails_is_a_row_with_its_error():
    assert benchmark.tried("one", lambda: [{"ms": 1.0}]) == [{"ms": 1.0}]
    (row,) = benchmark.tried("other", lambda: 1 / 0)
    assert row == {"name": "other", "error": "division by zero"}
