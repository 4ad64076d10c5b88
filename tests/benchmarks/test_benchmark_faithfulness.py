"""The benchmark of saliency methods: a model and test arrays in, medians and pairs out."""

import json

import numpy as np
import pytest
import torch
from support.benchmarks import benchmark as load_benchmark
from support.corner_model import Corner
from support.registered import tiny

import vitrail
from vitrail.explain.scoring.faithfulness import Areas

benchmark = load_benchmark("faithfulness")


def test_a_method_that_finds_what_the_model_looks_at_beats_noise_and_the_centre():
    images = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    images[:, :, :8, :8] += 4  # all that the model looks at
    model, target = Corner(16), torch.zeros(8, dtype=torch.long)
    maps, seconds = benchmark.explained(model, images, ["occlusion"])
    assert list(seconds) == ["occlusion"]
    found = benchmark.measured(model, images, maps, target, "mean", steps=8)
    assert benchmark.table("", found, seconds).rows[0]["map"] == "occlusion"
    pairs = benchmark.paired("", found, "occlusion").rows
    assert {row["against"]: row["smaller"] for row in pairs} == {"random": 1, "centre": 1}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model that always says 2, and arrays of which every other image is of that class."""
    folder = tmp_path_factory.mktemp("given")
    model = tiny(image_size=32, num_classes=3)
    with torch.no_grad():
        model.get_submodule("head").get_parameter("bias").copy_(torch.tensor([0.0, 0.0, 1e3]))
    vitrail.save(model, folder / "run")
    (folder / "arrays").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    for part in ("train", "test"):
        np.save(folder / "arrays" / f"{part}_images.npy", pixels)
        np.save(folder / "arrays" / f"{part}_labels.npy", np.array([2, 1] * 4))
    return str(folder / "run"), str(folder / "arrays")


def test_a_run_and_arrays(given, monkeypatch, tmp_path, capsys):
    out = tmp_path / "found.json"
    words = ["--run", given[0], "--data", given[1], "--images", "8", "--steps", "2", "--fewer", "1", "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["faithfulness.py", *words])
    benchmark.main()
    setting, table, pairs, fewer = json.loads(out.read_text(encoding="utf-8"))["sections"]
    assert setting["values"]["of them right"] == "50.0 %"
    assert {row["map"] for row in table["rows"]} == {"relevance", "attention", "random", "centre"}
    assert [row["against"] for row in pairs["rows"]] == ["attention", "random", "centre"]
    assert [row["steps"] for row in fewer["rows"]] == [1]
    assert "Deletion by relevance, image by image" in capsys.readouterr().out


def test_the_images_are_those_of_the_seed(given):
    first, again = (benchmark.pictures(*given, 3).images for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(benchmark.pictures(*given, 1, skip=2).images, first[2:])
    with pytest.raises(SystemExit, match=r"5 .*6"):
        benchmark.pictures(*given, 5, skip=6)


def test_correlation_of_fewer_steps_by_hand():
    exact = {
        "a": Areas(torch.tensor([0.1, 0.2]), torch.tensor([0.5, 0.6])),
        "b": Areas(*torch.tensor([[0.3, 0.1]] * 2)),
    }
    opposite = {name: Areas(-one.deletion, one.insertion) for name, one in exact.items()}
    same, turned = benchmark.fewer_steps(exact, {4: exact, 2: opposite}).rows
    assert same == {"steps": 4, "deletion": 1, "deletion, one image": 1, "insertion": 1, "insertion, one image": 1}
    assert (turned["deletion"], turned["deletion, one image"], turned["insertion"]) == (-1, -1, 1)


def test_medians_and_pairs_by_hand():
    found = {
        "mine": Areas(torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.5, 0.5])),
        "other": Areas(torch.tensor([0.3, 0.1, 0.7]), torch.tensor([0.2, 0.4, 0.9])),
    }
    first, second = benchmark.table("", found, {"mine": 0.03}).rows
    assert (first["map"], first["deletion"], first["del. spread"], first["ms an image"]) == ("mine", 0.2, 0.25, 10.0)
    assert (second["map"], second["deletion"], second["insertion"], second["ms an image"]) == ("other", 0.3, 0.4, None)
    (pair,) = benchmark.paired("", found, "mine").rows
    assert pair["against"] == "other"
    assert pair["smaller"] == pytest.approx(2 / 3)
    assert pair["by"] == pytest.approx(0.1)
