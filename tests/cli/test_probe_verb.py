"""The verb `probe` as a person types it: on a model without a head, normalised as in training, and with mistakes."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.registered import tiny

import vitrail
from vitrail.cli import main
from vitrail.data.preprocess import Preprocess
from vitrail.training.start import FOR_PROBE


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that differ in colour alone."""
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for place, name in enumerate(("blue", "red")):
        (folder / name).mkdir()
        for number in range(30):
            pixels = chance.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[..., 2 * place] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def headless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that was never taught a class."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    vitrail.save(tiny(num_classes=0), tmp_path / "model")
    return tmp_path / "model"


def test_a_model_without_a_head_is_probed(headless, photos, tmp_path, capsys):
    page = tmp_path / "probe.html"
    words = ["probe", str(headless), str(photos), "--layers", "0,-1", "--k", "5", "--device", "cpu"]
    assert main([*words, "--json", "--out", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    (table,) = [section for section in report["sections"] if section["title"] == "By layer"]
    assert [row["layer"] for row in table["rows"]] == [0, 1]
    assert all(row["linear"] > 0.8 for row in table["rows"])
    assert "<svg" in page.read_text()
    assert main([*words, "--linear", "logistic", "--pool", "mean"]) == 0
    printed = capsys.readouterr().out
    assert "logistic regression" in printed
    assert "mean of patches" in printed


def test_images_are_preprocessed_as_the_checkpoint_says(headless, photos, tmp_path, capsys):
    model = vitrail.load(headless)
    model.preprocess = Preprocess(image_size=model.config.image_size, std=(1e12,))  # every image is the same
    vitrail.save(model, tmp_path / "flat")
    scores = []
    for folder in (headless, tmp_path / "flat"):
        assert main(["probe", str(folder), str(photos), "--k", "5", "--json", "--device", "cpu"]) == 0
        sections = json.loads(capsys.readouterr().out)["sections"]
        scores.append(next(section["rows"] for section in sections if section["title"] == "By layer"))
    assert scores[0] != scores[1]
    (tmp_path / "flat" / "run.json").write_text("{")
    assert main(["probe", str(tmp_path / "flat"), str(photos), "--device", "cpu"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_an_exported_model_has_no_layers(photos, capsys):
    assert main(["probe", "model.onnx", str(photos)]) == 2
    assert "exported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--layers", "7"], "layer 7 does not exist"),
        (["--k", "500"], "k is 500"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_mistakes_are_told_in_one_sentence(headless, photos, words, told, capsys):
    assert main(["probe", str(headless), str(photos), "--device", "cpu", *words]) == 2
    assert told in capsys.readouterr().err


def test_what_is_no_list_of_layers_is_told(capsys):
    assert main(["probe", "packaged", "demo", "--layers", "first"]) == 2
    assert "'first'" in capsys.readouterr().err


def test_fit_writes_a_run_that_predicts(headless, photos, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["probe", str(headless), str(photos), "--fit", "--out", str(out), "--device", "cpu"]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    assert main(["predict", str(out), str(photos / "red" / "0.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"][0]["label"] == "red"
    words = ["probe", str(headless), str(photos), "--fit", "--out", str(out), "--device", "cpu"]
    assert main(words) == 2  # it is complete, and is not overwritten
    assert "complete" in capsys.readouterr().err
    (out / "best.json").unlink()  # as if the first had been killed
    assert main(words) == 0


@pytest.mark.parametrize(("words", "message"), [(["--fit", "--k", "3"], "--k"), (["--val", "0.2"], "--fit")])
def test_options_of_one_kind_of_probe_are_refused_for_the_other(headless, photos, capsys, words, message):
    assert main(["probe", str(headless), str(photos), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "size"), [([], None), (["--batch-size", "256"], 256), (["--batch-size", "8"], 8)])
def test_fit_keeps_every_batch_size_that_is_given(headless, photos, tmp_path, monkeypatch, words, size):
    given = {}
    monkeypatch.setattr("vitrail.training.run.train", lambda *_, **what: given.update(what))
    monkeypatch.setattr("vitrail.cli.learning.report_run", lambda *_: None)
    assert main(["probe", str(headless), str(photos), "--fit", "--out", str(tmp_path / "run"), *words]) == 0
    assert given.get("batch_size") == size


def test_the_help_says_the_batch_sizes_that_are_used(capsys):
    with pytest.raises(SystemExit):
        main(["probe", "--help"])
    assert f"with --fit: {FOR_PROBE['batch_size']}" in " ".join(capsys.readouterr().out.split())
