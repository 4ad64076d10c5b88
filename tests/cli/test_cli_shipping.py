"""Export, bench and predict by artefacts, as a person types them."""

import csv
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.registered import tiny

import vitrail
from vitrail.cli import main
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import NumbersTarget
from vitrail.runs.record import Record, Result
from vitrail.tasks.regress import RegressConfig


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
    vitrail.save(tiny(num_classes=3, depth=1), folder)
    return str(folder)


@pytest.fixture(scope="module")
def numbers(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a regression."""
    folder = tmp_path_factory.mktemp("models") / "numbers"
    backbone = tiny(num_classes=1, depth=1)
    target = NumbersTarget(names=("age",))
    preprocess = Preprocess(image_size=backbone.config.image_size)
    record = Record(
        recipe={"model": "vit_tiny_patch16", "seed": 0},
        model={},
        task=RegressConfig(),
        schema={target.field: target},
        preprocess=preprocess,
        source=str(photos),
    )
    vitrail.save(backbone, folder)
    record.write(folder)
    state = {"mean": [40.0], "std": [12.0], "span": [[18.0, 90.0]], "margin": [9.0], "calibrated_on": 60}
    Result(metrics={"r2": 0.5, "images": 60.0}, state=state).write(folder)
    return str(folder)


@pytest.fixture(scope="module")
def dist(model: str, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "dist"
    words = ["export", model, "--to", "onnx", "--int8", str(photos), "--rounds", "1", "--licence", "Apache-2.0"]
    words += ["--force"]  # six images are few to validate int8 on
    assert main([*words, "--out", str(out)]) == 0
    return out


def test_export_writes_an_artefact_and_its_certificate(dist: Path) -> None:
    assert {file.name for file in dist.iterdir()} == {
        "model.onnx",
        "model.int8.onnx",
        "certificate.html",
        "certificate.json",
        "SHA256SUMS",
    }
    assert "Certificate" in (dist / "certificate.html").read_text()


def test_the_artefact_states_its_licence(dist: Path) -> None:
    assert vitrail.open(dist / "model.onnx").card.licence == "Apache-2.0"


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
    assert "--out predictions.parquet" in capsys.readouterr().err
    monkeypatch.setattr("vitrail.deploy.bulk.cluster.needs_ray", lambda: None)
    assert main([*words, "--out", str(tmp_path / "found.csv")]) == 2
    assert f"vitrail export {model}" in capsys.readouterr().err


def test_predict_into_a_table_makes_no_row_twice(
    model: str, dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(dist / "model.onnx"), str(photos), "--out", str(tmp_path / "found.csv")]
    assert main(words) == 0
    assert "12 of them new" in capsys.readouterr().out
    assert main(words) == 0
    assert "12 rows, 0 of them new" in capsys.readouterr().out
    before = (tmp_path / "found.csv").read_text()
    rows = list(csv.DictReader(before.splitlines()))
    assert len(rows) == 12
    assert all(row["chosen"] == row["label"] for row in rows), "of one label each, the likeliest"
    (wrote,) = {row["model"] for row in rows}
    assert wrote.startswith(f"{dist / 'model.onnx'}@")
    assert main(["predict", model, *words[2:], "--device", "cpu"]) == 2
    assert wrote in capsys.readouterr().err
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


def test_a_regression_is_exported_measured_and_predicted(
    numbers: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dist = tmp_path / "dist"
    assert main(["export", numbers, "--to", "torch", "--rounds", "1", "--out", str(dist)]) == 0
    assert "60 validation images" in capsys.readouterr().out, "the intervals travel along"
    words = ["bench", str(dist), numbers, "--batches", "2", "--rounds", "1", "--count", "8", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["sections"][2]["rows"]
    assert {row["same answer"] for row in rows} == {1.0}
    out = tmp_path / "found.jsonl"
    assert main(["predict", str(dist), str(photos), "--out", str(out)]) == 0
    first, *_ = (json.loads(line) for line in out.read_text().splitlines())
    assert list(first) == ["path", "age", "age_low", "age_high", "error", "model"]
    assert first["age_high"] - first["age"] == pytest.approx(9)


def test_eval_takes_an_artefact(dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "truth.csv"
    table.write_text("path,label\n" + "".join(f"{file},{at % 3}\n" for at, file in enumerate(sorted(photos.iterdir()))))
    assert main(["eval", str(dist / "model.onnx"), str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"]


def test_json_lines_hold_answers_as_lists(dist: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert main(["predict", str(dist / "model.onnx"), str(photos), "--out", str(out)]) == 0
    first, *_ = (json.loads(line) for line in out.read_text().splitlines())
    assert isinstance(first["answers"], list)
    assert first["answers"][0] == [first["label"], first["probability"]]


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
    assert {row["same answer"] for row in table["rows"] if row["model"] == "model.onnx"} == {1.0}
    assert {row["batch"] for row in table["rows"]} == {1, 2}
    assert json.loads((dist / "fastest.json").read_text())["artefact"] in ("model.onnx", "model.int8.onnx")


def test_a_folder_stands_for_its_one_artefact(
    dist: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.onnx", "model.int8.onnx", "certificate.json"):
        (tmp_path / name).write_bytes((dist / name).read_bytes())
    words = ["predict", str(tmp_path), str(photos / "03.png")]
    assert main(words) == 2
    assert f"vitrail bench {tmp_path}" in capsys.readouterr().err
    (tmp_path / "model.int8.onnx").unlink()
    assert main(words) == 0
    (tmp_path / "model.onnx").unlink()
    assert main(words) == 2
    assert "certificate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["export", "packaged", "--to", "onxx"], "'onnx'"),
        (["export", "packaged", "--to", ","], "target"),
        (["export", "some.onnx"], "exported"),
        (["export", "packaged", "--count", "0"], "count"),
        (["export", "vit_smal_patch16"], "vit_small_patch16"),
        (["export", "vit_small_patch16"], "weights"),
        (["bench", "packaged", "--batches", "0"], "--batches"),
        (["bench", "packaged", "--batches", ","], "batch"),
        (["bench", "nothing.here.png"], "artefact"),
        (["bench", "packaged", "--batches", "one"], "--batches"),
        (["predict", "missing.onnx", "x.png"], "missing.onnx"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    message = capsys.readouterr().err
    assert word in message
    assert message.count("\n") == 1


def test_bench_of_models_needs_names(capsys):
    assert main(["bench", "train"]) == 2
    assert "names" in capsys.readouterr().err


def test_bench_of_models_is_one_document_for_all_batches(capsys, monkeypatch):
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    words = ["vit32_small", "--image-size", "8", "--batches", "1,2", "--rounds", "1", "--threads", "1"]
    assert main(["bench", "infer", *words, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [part["title"].rsplit(" ", 1)[1] for part in found["sections"]] == ["1", "2"]
    assert threads == [1]
    assert main(["bench", "infer", "vit32_small", "--threads", "1,2"]) == 2
    assert "threads" in capsys.readouterr().err
