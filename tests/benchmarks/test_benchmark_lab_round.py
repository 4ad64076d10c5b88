"""The round of full runs on a GPU: data to carry, seeds as processes, a second call, and what is kept."""

import json

import numpy as np
import pytest
import torch
from support.benchmarks import benchmark as load_benchmark

from vitrail.data.sources.opening import find
from vitrail.lab.fitting import whole

lab_round = load_benchmark("lab_round")


@pytest.mark.parametrize(("name", "shape"), [("cifar10", (32, 32, 3)), ("fashion-mnist", (28, 28))])
def test_packed_images_are_found_in_the_cache(name, shape, tmp_path, monkeypatch):
    rows = np.linspace(0, 200, shape[0], dtype=np.uint8).reshape(-1, *[1] * (len(shape) - 1))
    images = np.stack([np.broadcast_to(rows, shape) + np.uint8(step) for step in range(0, 50, 5)])
    (tmp_path / "own").mkdir()
    for part in ("train", "test"):
        np.save(tmp_path / "own" / f"{part}_images.npy", images)
        np.save(tmp_path / "own" / f"{part}_labels.npy", np.arange(10))
    monkeypatch.setattr(lab_round, "SHEET", 6)
    monkeypatch.setattr(lab_round, "COLUMNS", 3)
    lab_round.main(["pack", str(tmp_path / "packed"), f"{name}={tmp_path / 'own'}"])
    lab_round.unpack(tmp_path / "packed", tmp_path / "cache")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    found = find(name)
    assert found.train.targets["label"].tolist() == list(range(10))
    pixels = whole(found.test, torch.arange(10)).permute(0, 2, 3, 1).numpy()
    assert np.abs(pixels.astype(int) - images.reshape(pixels.shape)).mean() < 8


def test_a_second_call_measures_what_is_missing_and_three_seeds_are_kept(tmp_path, capsys):
    words = ["run", "--tiny", "--jobs", "1", "--names", "diagonal-query", "--out", str(tmp_path / "out")]
    lab_round.main([*words, "--seeds", "1"])
    file = tmp_path / "out" / "lab.json"
    file.rename(tmp_path / "first.json")
    first = json.loads((tmp_path / "first.json").read_text())
    lab_round.main([*words, "--seeds", "2", "--before", str(tmp_path / "first.json")])
    assert "1 of 2 seeds to measure" in capsys.readouterr().out
    record = json.loads(file.read_text())["diagonal-query"]
    assert [run["seed"] for run in record["runs"]] == [0, 1]
    assert record["runs"][0] == first["diagonal-query"]["runs"][0]
    assert "--seeds 2" in record["command"]

    lab_round.main(["keep", str(file), "--to", str(tmp_path)])
    assert "too few" in capsys.readouterr().out
    file.write_text(
        json.dumps({"diagonal-query": record | {"runs": [record["runs"][0] | {"seed": n} for n in range(3)]}})
    )
    lab_round.main(["keep", str(file), "--to", str(tmp_path)])
    assert len(json.loads((tmp_path / "diagonal-query.json").read_text())["runs"]) == 3


def test_what_fails_is_said_and_the_rest_is_measured(tmp_path, capsys, monkeypatch):
    def command(name, seed, args, folder):
        words = lab_round_command(name, seed, args, folder)
        return [*words[:3], "no-such", *words[4:]] if seed == 0 else words

    lab_round_command = lab_round._command
    monkeypatch.setattr(lab_round, "_command", command)
    words = ["run", "--tiny", "--names", "diagonal-query", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path)]
    lab_round.main(words)
    told = capsys.readouterr().out
    assert "seed 0: not measured" in told
    assert "no-such" in told
    assert [run["seed"] for run in json.loads((tmp_path / "lab.json").read_text())["diagonal-query"]["runs"]] == [1]


@pytest.mark.parametrize("name", lab_round.NAMES)
def test_names_are_experiments(name):
    assert lab_round.chosen(name)
