"""An artefact must compute what its certificate says, when it is opened to serve."""

import json
import shutil

import pytest

from vitrail.api import open_engine
from vitrail.errors import CheckpointError


@pytest.fixture
def folder(shipped, tmp_path):
    for name in ("model.onnx", "model.int8.onnx", "certificate.json"):
        shutil.copy(shipped[0] / name, tmp_path)
    return tmp_path


def changed(folder, change):
    data = json.loads((folder / "certificate.json").read_text())
    change(data["trial"])
    (folder / "certificate.json").write_text(json.dumps(data))


def test_what_was_exported_is_opened(folder):
    trial = json.loads((folder / "certificate.json").read_text())["trial"]
    assert {"model.pt2", "model.onnx", "model.xml"} <= set(trial)
    assert set(trial["model.onnx"]) == {"logits", "probabilities"}
    for name in ("model.onnx", "model.int8.onnx"):
        open_engine(str(folder / name), 1)


def test_other_numbers_are_refused(folder):
    def shift(trial):
        trial["model.onnx"]["logits"][0] += 1.0

    changed(folder, shift)
    with pytest.raises(CheckpointError, match="certificate"):
        open_engine(str(folder / "model.onnx"), 1)


def test_other_outputs_are_refused(folder):
    changed(folder, lambda trial: trial["model.onnx"].update(logits=[1.0]))
    with pytest.raises(CheckpointError, match="outputs"):
        open_engine(str(folder / "model.onnx"), 1)


def test_a_certificate_without_a_trial_is_accepted(folder):
    changed(folder, dict.clear)
    assert open_engine(str(folder / "model.onnx"), 1).task.output_names


def test_a_damaged_certificate(folder):
    (folder / "certificate.json").write_text('{"trial": {"model.onnx": 3}}')
    with pytest.raises(CheckpointError, match="damaged"):
        open_engine(str(folder / "model.onnx"), 1)
