import shutil
from pathlib import Path

import onnx
import pytest
import torch
from support.shipped import photos

from vitrail.deploy.artefact import certificate
from vitrail.deploy.artefact import ship as module
from vitrail.deploy.artefact.certificate import CertifyConfig, Tolerance
from vitrail.deploy.artefact.ship import ShipConfig, Shipped, ship
from vitrail.deploy.int8 import judge
from vitrail.deploy.int8.onnx_matmuls import find_layers
from vitrail.deploy.int8.quantise import QuantiseConfig
from vitrail.errors import BusyError, ConfigError
from vitrail.locks import locked
from vitrail.report import Report


@pytest.fixture
def exported(shipped, monkeypatch):
    """The graphs of torch and ONNX, which take seconds, are those of the one export of all tests."""
    program = torch.export.load(shipped[0] / "model.pt2")
    monkeypatch.setattr(module, "to_program", lambda _: program)
    monkeypatch.setattr(module, "write_onnx", lambda _, card, path: Path(shutil.copy(shipped[0] / "model.onnx", path)))


QUICK = CertifyConfig(batches=(1,), scales=(1.0,), images=4, rounds=1)


@pytest.mark.parametrize("fixture", ["shipped", "shipped_numbers"])
def test_everything_lands_in_the_folder(fixture, request):
    out, found = request.getfixturevalue(fixture)
    names = {"model.pt2", "model.onnx", "model.xml", "model.int8.onnx", "model.int8.xml"}
    assert {file.name for file in found.files} == names
    assert {file.name for file in out.iterdir()} == {
        *names, "model.bin", "model.int8.bin", "certificate.html", "certificate.json", "SHA256SUMS"
    }  # fmt: skip
    assert (found.refused, found.refusal) == ({}, None)
    rows = found.report["Artefacts beside the eager model"].rows
    assert {row["verdict"] for row in rows if "int8" not in row["artefact"]} == {"passed"}


def test_export_changes_no_calibration(shipped, model):
    assert model.task.state()["temperature"]["temperature"] == 2.0


def test_the_refusal_is_one_sentence():
    refused = {"model.int8.onnx": "too far", "model.int8.xml": "too far", "model.pt2": "not finite"}
    found = Shipped(files=(), refused=refused, report=Report("x", ()))
    assert found.refusal == "3 not written; model.int8.onnx, model.int8.xml: too far; model.pt2: not finite"


def test_a_folder_has_one_export_at_a_time(model, tmp_path):
    with locked(tmp_path / ".export.lock", what="the other"), pytest.raises(BusyError, match="export"):
        ship(model, photos(4), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("exported")
def test_outside_tolerance_nothing_is_written_unless_forced(model, tmp_path, monkeypatch):
    monkeypatch.setitem(certificate.TOLERANCES, "float32", Tolerance(-1.0, 1.0, 1.0))
    found = ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK))
    assert found.files == ()
    assert "error" in found.refused["model.pt2"]
    assert {file.name for file in tmp_path.iterdir()} == {"certificate.html", "certificate.json", "SHA256SUMS"}
    assert "model.pt2" in found.report["Not written"].text
    found = ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK, force=True))
    assert [file.name for file in found.files] == ["model.pt2"]
    assert "model.pt2" in found.report["Written by force"].text


@pytest.mark.usefixtures("exported")
def test_int8_that_loses_accuracy_is_not_written_and_reported(model, shipped, tmp_path, monkeypatch):
    true, layers = judge.closeness, len(find_layers(onnx.load(shipped[0] / "model.onnx")))
    monkeypatch.setattr(
        judge, "closeness", lambda engine, *rest: true(engine, *rest) if len(engine.card.kept) == layers else None
    )
    config = ShipConfig(targets=("onnx",), certify=QUICK, quantise=QuantiseConfig(calibrate=2))
    found = ship(model, photos(4), tmp_path, config, calibration=photos(6))
    assert [file.name for file in found.files] == ["model.onnx"]
    assert "int8 failed" in found.refused["model.int8"]
    assert "blocks.0.mlp.fc1" in found.report["What int8 does to the layers"].text
    with pytest.raises(ConfigError, match="int8"):
        ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK), calibration=photos(6))


@pytest.mark.parametrize(("targets", "word"), [((), "target"), (("onxx",), "onnx")])
def test_unknown_targets_are_refused(targets, word):
    with pytest.raises(ConfigError, match=word):
        ShipConfig(targets=targets)
