"""The benchmark of capture: every contender runs, and ratios are those of a round."""

import pytest
import torch
from support.benchmarks import benchmark as load_benchmark

benchmark = load_benchmark("capture")


def test_every_contender_is_measured():
    runs = benchmark.contenders(torch.randn(1, 3, 32, 32), name="vit_tiny_patch16", compiled=False)
    assert list(runs) == ["nothing", *benchmark.ASKED, "explicit attention"]
    logits = runs["nothing"]()
    for name in benchmark.ASKED:
        found, maps = runs[name]()
        assert torch.equal(found, logits)
        assert all(attention.shape[-1] == 5 for attention in maps)
    for limit, rounds in ((1e9, 5), (0.0, benchmark.FEWEST)):  # a slow machine ends too
        taken = benchmark.measure(runs, rounds=5, times=1, device="cpu", limit=limit)
        assert all(len(seconds) == rounds and min(seconds) > 0 for seconds in taken.values())


def test_ratios_are_those_of_a_round():
    low, middle, high = benchmark.ratios({"nothing": [1.0, 2.0, 4.0], "more": [2.0, 2.0, 12.0]})["more"]
    assert (low, middle, high) == pytest.approx((1.5, 2.0, 2.5))


def test_options_have_defaults():
    chosen = benchmark.parse(["--batch", "2"])
    assert (chosen.model, chosen.batch, chosen.device) == ("vit_base_patch16", 2, "cpu")
