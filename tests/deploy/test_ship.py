import shutil
from pathlib import Path

import onnx
import pytest
import torch
from shipped import photos

from vitrail.deploy import certificate, quantise
from vitrail.deploy import ship as module
from vitrail.deploy.certificate import CertifyConfig, Tolerance
from vitrail.deploy.quantise import QuantiseConfig
from vitrail.deploy.ship import ShipConfig, ship
from vitrail.errors import ConfigError


@pytest.fixture
def exported(shipped, monkeypatch):
    """What takes seconds is taken from the one export of all tests: the graphs of torch and of ONNX."""
    program = torch.export.load(shipped[0] / "model.pt2")
    monkeypatch.setattr(module, "to_program", lambda _: program)
    monkeypatch.setattr(module, "write_onnx", lambda _, card, path: Path(shutil.copy(shipped[0] / "model.onnx", path)))


QUICK = CertifyConfig(batches=(1,), scales=(1.0,), images=4, rounds=1)


def test_everything_lands_in_the_folder(shipped):
    out, told = shipped
    names = {"model.pt2", "model.onnx", "model.xml", "model.int8.onnx", "model.int8.xml"}
    assert {file.name for file in told.files} == names
    assert {file.name for file in out.iterdir()} == {
        *names, "model.bin", "model.int8.bin", "certificate.html", "certificate.json"
    }  # fmt: skip
    assert told.refused == {}


@pytest.mark.usefixtures("exported")
def test_outside_tolerance_nothing_is_written_unless_forced(model, tmp_path, monkeypatch):
    monkeypatch.setitem(certificate.TOLERANCES, "float32", Tolerance(-1.0, 1.0, 1.0))
    told = ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK))
    assert told.files == ()
    assert "error" in told.refused["model.pt2"]
    assert {file.name for file in tmp_path.iterdir()} == {"certificate.html", "certificate.json"}
    assert "model.pt2" in told.report["Not written"].text
    told = ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK, force=True))
    assert [file.name for file in told.files] == ["model.pt2"]
    assert "model.pt2" in told.report["Written by force"].text


@pytest.mark.usefixtures("exported")
def test_int8_that_harms_is_not_written_and_says_so(model, shipped, tmp_path, monkeypatch):
    true, layers = quantise.judged, len(quantise.find_layers(onnx.load(shipped[0] / "model.onnx")))
    monkeypatch.setattr(
        quantise, "judged", lambda engine, *rest: true(engine, *rest) if len(engine.card.kept) == layers else None
    )
    config = ShipConfig(targets=("onnx",), certify=QUICK, quantise=QuantiseConfig(calibrate=2))
    told = ship(model, photos(4), tmp_path, config, calibration=photos(6))
    assert [file.name for file in told.files] == ["model.onnx"]
    assert "int8 failed" in told.refused["model.int8"]
    assert "blocks.0.mlp.fc1" in told.report["What int8 does to the layers"].text
    with pytest.raises(ConfigError, match="int8 artefacts are ONNX"):
        ship(model, photos(4), tmp_path, ShipConfig(targets=("torch",), certify=QUICK), calibration=photos(6))


def test_nothing_asked_for_is_an_error(model, tmp_path):
    with pytest.raises(ConfigError, match="nothing to export to"):
        ship(model, photos(4), tmp_path, ShipConfig(targets=()))
