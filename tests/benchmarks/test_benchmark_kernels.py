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
    for name in ("suits", "WIDTHS", "DROPOUT", "NORMED", "STREAM"):
        monkeypatch.setattr(benchmark.kernels, name, getattr(benchmark.kernels, name))
    monkeypatch.setattr(benchmark.joined_heads, "JOINED", False)
    benchmark.only(())
    assert (benchmark.kernels.suits, benchmark.kernels.WIDTHS) == (benchmark.refuse, ())
    benchmark.only(benchmark.PARTS)
    assert (benchmark.kernels.suits, benchmark.kernels.WIDTHS) == (benchmark.SUITS, benchmark.WIDTHS)
    assert (benchmark.kernels.NORMED, benchmark.kernels.STREAM) == (0, False)
    benchmark.only((*benchmark.PARTS, benchmark.NORM, benchmark.STREAM))
    assert (benchmark.kernels.NORMED, benchmark.kernels.STREAM) == (benchmark.NORMED, True)


def test_each_model_has_the_contenders_that_its_layers_can_use():
    found = {name: [" + ".join(way) for way in benchmark.ways(name)] for name in benchmark.STEPS}
    best = "bias_gelu + add_norm + 16-bit stream + join_heads"
    assert found["ViT-B/16 224"] == [
        "bias_gelu", "bias_gelu + add_norm", "bias_gelu + add_norm + 16-bit stream", best, f"{best} + fp8",
        f"{best} + recorded", f"{best} + fp8 + recorded",
    ]  # fmt: skip
    assert found["Swin-T 224"][2:] == ["bias_gelu + recorded", "bias_gelu + window_attention + recorded"]
    assert found["32 px small"][2:] == [
        "bias_gelu + window_attention + add_norm", "bias_gelu + window_attention + add_norm + 16-bit stream",
    ]  # fmt: skip
    assert found["32 px small, dropout"] == ["bias_gelu", "bias_gelu + window_attention"]
