"""The benchmark of attention mechanisms: it runs every one of them, and its measures are right where they are known."""

import math

import pytest
import torch
from support.benchmarks import benchmark as load_benchmark

from vitrail.layers.attention import AttentionConfig

benchmark = load_benchmark("attention")


@pytest.mark.parametrize("train", [False, True])
def test_every_mechanism_is_measured(train, monkeypatch):
    monkeypatch.setattr(benchmark, "SIDES", (4, 8))
    results = benchmark.sweep("cpu", train=train, rounds=1, budget=600.0)
    assert set(results) == {*AttentionConfig.kinds, "softmax, explicit", "deformable, stride 2"}
    for points in results.values():
        assert list(points) == [16, 64]
        assert all(seconds > 0 and peak > 0 for seconds, peak in points.values())
    assert benchmark.shown(results, "").row_count == len(results)


def test_what_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(benchmark, "SIDES", (4, 8))
    assert all(list(points) == [16] for points in benchmark.sweep("cpu", train=False, rounds=1, budget=0.0).values())


def test_peak_memory_is_the_most_that_is_held_at_once():
    def run() -> None:
        for _ in range(3):
            first = torch.empty(1000)
            second = torch.empty(500)
            del first, second

    assert benchmark.peak_bytes(run, "cpu") == pytest.approx(6000, abs=256)  # the allocator rounds up


def test_exponents_are_slopes():
    assert benchmark.exponent({64: 9.0, 1024: 1.0, 4096: 16.0, 16384: 256.0}) == pytest.approx(2)
    assert math.isnan(benchmark.exponent({1024: 1.0}))


def test_those_that_are_dense_by_nature_are_named():
    found = benchmark.dense_by_nature()
    assert found >= {"softmax", "softmax, explicit", "biased", "deformable"}
    assert not found & {"linear", "local", "window", "reduction", "deformable, stride 2"}
