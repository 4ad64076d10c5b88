"""The benchmark of saliency methods: on the packaged model, relevance is truer than attention and than noise."""

import importlib.util
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parent.parent / "benchmarks" / "faithfulness.py"
spec = importlib.util.spec_from_file_location("benchmark_faithfulness", PATH)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


def test_relevance_beats_attention_noise_and_the_centre():
    model, images, target = benchmark.pictures("packaged", 48)
    maps, seconds = benchmark.explained(model, images, ["relevance", "attention"])
    assert set(seconds) == {"relevance", "attention"}
    found = benchmark.measured(model, images, maps, target, "blur", steps=8)
    assert set(found) == {"relevance", "attention", "random", "centre"}
    shown = benchmark.table("", found, seconds)
    assert shown.rows[0]["map"] == "relevance", shown.rows
    pairs = benchmark.paired("", found, "relevance")
    assert [row["against"] for row in pairs.rows] == ["attention", "random", "centre"]
    assert all(row["smaller"] > 0.5 for row in pairs.rows)


def test_the_images_are_those_of_the_seed():
    first, again = (benchmark.pictures("packaged", 3)[1] for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(benchmark.pictures("packaged", 1, skip=2)[1], first[2:])
    with pytest.raises(SystemExit, match="5 after the first 1,996 are too many"):
        benchmark.pictures("packaged", 5, skip=1996)
