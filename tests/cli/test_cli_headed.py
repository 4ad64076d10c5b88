"""Folders of Hugging Face's detectors, segmenters and depth models on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.headed_folders import KINDS, headed_folder, labelled

from vitrail.cli import main
from vitrail.data.decode import decode
from vitrail.deploy.artefact.engine import servable
from vitrail.deploy.artefact.opening import open_engine
from vitrail.runs.trained import open_model
from vitrail.runs.trial import trial_picture, try_model

pytestmark = pytest.mark.filterwarnings("ignore:positions resampled")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peer")
    headed_folder(kind, path)
    return path


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "photo.png"
    rows, columns = np.mgrid[:90, :130]
    pixels = np.stack([rows * 2, columns, (rows + columns) % 255], axis=-1)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_predict(folder: Path, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.png"
    assert main(["predict", str(folder), str(photo), "--draw", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith(str(photo))
    drawn, picture = decode(out.read_bytes()), decode(photo.read_bytes())
    assert drawn.shape == picture.shape
    assert not torch.equal(drawn, picture)


def test_a_table_has_the_same_answers(folder: Path, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    assert main(["predict", str(folder), str(photo), "--out", str(out), "--device", "cpu"]) == 0
    (expected,) = open_model(folder).predict(photo)
    assert expected.answer is not None
    row = json.loads(out.read_text())
    assert {name: row[name] for name in expected.answer.row()} == json.loads(json.dumps(expected.answer.row()))


def test_eval(kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = labelled(kind, tmp_path / "data")
    lines = data.read_text().splitlines()
    data.write_text("\n".join(lines[:9]) + "\n")
    assert main(["eval", str(folder), str(data), "--device", "cpu"]) == 0
    assert "8 images" in " ".join(capsys.readouterr().out.split())


def test_classes_that_the_model_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headed_folder("DETR", tmp_path / "detr")
    data = labelled("DETR", tmp_path / "data")
    data.write_text(data.read_text().replace("bright", "blue"))
    assert main(["eval", str(tmp_path / "detr"), str(data)]) == 2
    assert "blue" in capsys.readouterr().err


def test_serving_and_artefacts_compute_at_one_size(folder: Path) -> None:
    engine = open_engine(folder)
    assert try_model(engine)
    trained = open_model(folder)
    images = trial_picture(trained.preprocess)
    with torch.no_grad():
        exported = servable(trained)(images.permute(0, 2, 3, 1))
    for name, values in trained.outputs(images).items():
        torch.testing.assert_close(exported[name], values, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_export(folder: Path, photo: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["export", str(folder), "--to", "onnx", "--images", str(photo.parent), "--count", "1", "--rounds", "1"]
    assert main([*words, "--out", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "model.onnx").is_file()
    assert main(["predict", str(tmp_path / "model.onnx"), str(photo)]) == 0


def test_a_picture_that_is_too_long(tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headed_folder("EoMT, windows", tmp_path)
    Image.new("RGB", (60_000, 1)).save(tmp_path / "long.png")
    assert main(["predict", str(tmp_path), str(tmp_path / "long.png"), str(photo)]) == 2
    told = capsys.readouterr()
    assert "too long" in told.out + told.err
    assert f"{photo}: " in told.out  # the other one is answered


def test_a_damaged_processor_is_an_error(tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headed_folder("DPT", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": false}')
    assert main(["predict", str(tmp_path), str(photo)]) == 2
    assert "do_resize" in capsys.readouterr().err
