"""The benchmark of kernels: contenders have the same weights, and the kernels can be switched off."""

import torch
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("kernels")


def test_contenders_have_the_same_weights():
    found = benchmark.contenders("32 px small")
    (plain, none), (fused, both) = found["plain"], found["bias_gelu + window_attention"]
    assert (none, both) == ((), benchmark.PARTS)
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        assert torch.equal(one, other)


def test_kernels_can_be_switched_off(monkeypatch):
    for name in ("suits", "WIDTHS", "DROPOUT"):
        monkeypatch.setattr(benchmark.kernels, name, getattr(benchmark.kernels, name))
    benchmark.only(())
    assert (benchmark.kernels.suits, benchmark.kernels.WIDTHS) == (benchmark.refuse, ())
    benchmark.only(benchmark.PARTS)
    assert (benchmark.kernels.suits, benchmark.kernels.WIDTHS) == (benchmark.SUITS, benchmark.WIDTHS)
