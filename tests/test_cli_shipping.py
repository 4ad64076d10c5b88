"""Export, bench and predict by artefacts, as a person types them."""

import argparse
import csv
import json
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from registered import tiny

import vitrail
from vitrail.cli import main, shipping
from vitrail.data.embedded import read_embedded
from vitrail.errors import Notice


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(12):
        pixels = np.zeros((40, 36), np.uint8)
        pixels[5:35, 8 : 12 + number] = draw.integers(100, 255)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    vitrail.save(tiny(num_classes=3), folder)
    return str(folder)


@pytest.fixture(scope="module")
def dist(model: str, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "dist"
    words = ["export", model, "--to", "onnx", "--int8", str(photos), "--rounds", "1", "--licence", "Apache-2.0"]
    words += ["--force"]  # six pictures are few to judge int8 by
    assert main([*words, "--out", str(out)]) == 0
    return out


def test_export_writes_an_artefact_and_its_certificate(dist: Path) -> None:
    assert {file.name for file in dist.iterdir()} == {
        "model.onnx",
        "model.int8.onnx",
        "certificate.html",
        "certificate.json",
    }
    assert "Certificate" in (dist / "certificate.html").read_text()


def test_all_that_is_refused_is_told_in_a_sentence() -> None:
    refused = {"model.int8.onnx": "too far", "model.int8.xml": "too far", "model.pt2": "no numbers"}
    told = "3 not written; model.int8.onnx, model.int8.xml: too far; model.pt2: no numbers"
    assert shipping._refusal(refused) == told


def test_predict_takes_an_artefact(model: str, dist: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(dist / "model.onnx"), str(photos), "--json"]) == 0
    by_artefact = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["predict", model, str(photos), "--json", "--device", "cpu"]) == 0
    by_run = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(by_run) == 12
    for ours, theirs in zip(by_artefact, by_run, strict=True):
        assert ours["path"] == theirs["path"]
        assert ours["answers"][0]["label"] == theirs["answers"][0]["label"]
        assert ours["answers"][0]["probability"] == pytest.approx(theirs["answers"][0]["probability"], abs=1e-3)


def test_a_cluster_needs_a_table_and_an_artefact(
    model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", model, str(photos), "--device", "cpu", "--ray", "2"]
    assert main(words) == 2
    assert "--ray shares the writing of a table; name one: --out predictions.parquet" in capsys.readouterr().err
    monkeypatch.setattr("vitrail.deploy.cluster.needs_ray", lambda: None)
    assert main([*words, "--out", str(tmp_path / "found.csv")]) == 2
    assert f"--ray takes artefacts, not {model}; write one: vitrail export {model}" in capsys.readouterr().err


def test_predict_into_a_table_does_nothing_twice(
    model: str, dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(dist / "model.onnx"), str(photos), "--out", str(tmp_path / "found.csv")]
    assert main(words) == 0
    assert "12 rows, 12 of them new" in capsys.readouterr().out
    assert main(words) == 0
    assert "12 rows, 0 of them new" in capsys.readouterr().out
    before = (tmp_path / "found.csv").read_text()
    rows = list(csv.DictReader(before.splitlines()))
    assert len(rows) == 12
    assert all(row["chosen"] == row["label"] for row in rows), "of one label each, the likeliest"
    (wrote,) = {row["model"] for row in rows}
    assert wrote.startswith(f"{dist / 'model.onnx'}@")
    assert main(["predict", model, *words[2:], "--device", "cpu"]) == 2
    assert f"found.csv was written by the model {wrote}, and this is {model}@" in capsys.readouterr().err
    assert (tmp_path / "found.csv").read_text() == before


def test_predict_takes_tars_and_tables_of_paths(
    dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as tar:
        tar.add(photos / "03.png", arcname="03.png")
    (tmp_path / "some.csv").write_text(f"path\n{photos / '04.png'}\n")
    words = ["predict", str(dist / "model.onnx"), str(tmp_path / "some.tar"), str(tmp_path / "some.csv")]
    assert main([*words, "--out", str(tmp_path / "found.csv")]) == 0
    assert "2 rows, 2 of them new" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == [str(tmp_path / "some.tar" / "03.png"), str(photos / "04.png")]


def test_bench_measures_a_folder_beside_a_run(model: str, dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(dist), model, "--batches", "1,2", "--rounds", "2", "--threads", "1", "--count", "8"]
    assert main([*words, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["sections"][2]
    assert {row["model"] for row in table["rows"]} == {
        "model.onnx",
        "model.onnx, dynamic int8",
        "model.int8.onnx",
        model,
    }
    assert {row["agreement"] for row in table["rows"] if row["model"] == "model.onnx"} == {1.0}
    assert {row["batch"] for row in table["rows"]} == {1, 2}
    assert json.loads((dist / "fastest.json").read_text())["artefact"] in ("model.onnx", "model.int8.onnx")


def compared(*what: str | Path, labels: Sequence[str]) -> list[tuple[int, ...]]:
    options = argparse.Namespace(images=None, what=[str(place) for place in what], count=20)
    return [tuple(picture.shape) for picture in shipping.pictures_to_compare(options, labels)]


def test_bench_takes_pictures_that_fit_the_model(dist: Path, photos: Path, tmp_path: Path) -> None:
    known = vitrail.open_trained().task.classes
    assert compared(dist, "packaged", labels=known) == [(3, 64, 64)] * 10, "of the package; nothing is fetched"
    assert compared(dist, labels=known) == [(3, 64, 64)] * 10
    (tmp_path / "run.json").write_text(json.dumps({"source": str(photos)}))
    assert compared(dist, tmp_path, labels=("a", "b")) == [(1, 40, 36)] * 12, "the run's own"
    assert compared(dist, tmp_path, labels=known) == [(1, 40, 36)] * 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compared(dist, labels=read_embedded().train.classes) == [(1, 28, 28)] * 20
    (tmp_path / "run.json").write_text(json.dumps({"source": "gone/elsewhere"}))
    with pytest.warns(Notice, match="name better ones: --images"):
        assert compared(dist, tmp_path, labels=("a", "b")) == [(1, 28, 28)] * 20


def test_pictures_of_a_folder_of_arrays_are_the_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "train_images.npy", np.zeros((6, 8, 9, 3), np.uint8))
    np.save(tmp_path / "train_labels.npy", np.arange(6) % 2)
    Image.new("RGB", (50, 40)).save(tmp_path / "sheet.png")
    assert [tuple(picture.shape) for picture in shipping.read_pictures(str(tmp_path), 4)] == [(3, 8, 9)] * 4


def test_the_packaged_model_is_proved_on_what_comes_with_it() -> None:
    options = argparse.Namespace(run="packaged", images=None, int8=None, count=200)
    proving, calibrating = shipping.pictures_to_prove(options, {"source": "cifar10"})
    assert ([tuple(picture.shape) for picture in proving], calibrating) == ([(3, 64, 64)] * 10, None)


def test_a_folder_stands_for_its_one_artefact(
    dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.onnx", "model.int8.onnx", "certificate.json"):
        (tmp_path / name).write_bytes((dist / name).read_bytes())
    words = ["predict", str(tmp_path), str(photos / "03.png")]
    assert main(words) == 2
    told = f"holds model.int8.onnx, model.onnx; name one, or let `vitrail bench {tmp_path}` find the fastest"
    assert told in capsys.readouterr().err
    (tmp_path / "model.int8.onnx").unlink()
    assert main(words) == 0
    (tmp_path / "model.onnx").unlink()
    assert main(words) == 2
    assert "holds no artefact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "packaged", "--to", "onxx"], "did you mean 'onnx'"),
        (["export", "some.onnx"], "exported already"),
        (["export", "packaged", "--count", "0"], "--count is 0"),
        (["export", "vit_smal_patch16"], "did you mean 'vit_small_patch16'?"),
        (["export", "vit_small_patch16"], "a name brings no weights"),
        (["bench", "packaged", "--batches", "0"], "--batches '0': each must be 1 or more"),
        (["bench", "packaged", "--batches", ","], "and a batch or more"),
        (["serve", "packaged", "--threads", "0"], "--threads is 0"),
        (["bench", "nothing.here.png"], "no artefact"),
        (["bench", "packaged", "--batches", "one"], "--batches"),
        (["predict", "missing.onnx", "x.png"], "no file"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
