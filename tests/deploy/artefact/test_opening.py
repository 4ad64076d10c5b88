import json

import pytest
from support.run_folder import run_folder

from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.artefact.opening import CHOICE, is_artefact, open_engine, open_weights
from vitrail.errors import CheckpointError, ConfigError


def test_a_folder_opens_its_fastest(shipped, tmp_path):
    (tmp_path / "model.onnx").write_bytes((shipped[0] / "model.onnx").read_bytes())
    assert not is_artefact(tmp_path)
    (tmp_path / CHOICE).write_text(json.dumps({"artefact": "model.onnx", "threads": 1}))
    assert is_artefact(tmp_path)
    assert open_engine(tmp_path).source == str(tmp_path / "model.onnx")
    for damaged in ("{}", "[]", "{"):
        (tmp_path / CHOICE).write_text(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            open_engine(tmp_path)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".xml"])
def test_damaged_and_missing_files_are_refused(suffix, tmp_path):
    with pytest.raises(CheckpointError, match="exist"):
        open_engine(tmp_path / f"a{suffix}")
    (tmp_path / f"a{suffix}").write_bytes(b"no model at all")
    with pytest.raises(CheckpointError, match=f"a{suffix}"):
        open_engine(tmp_path / f"a{suffix}")


def test_runs_open_directly(tmp_path):
    engine = open_engine(run_folder(tmp_path / "run"))
    assert isinstance(engine, TorchEngine)
    assert engine.task.output_names == ("cat", "dog")
    assert open_engine("packaged").card.licence == "Apache-2.0"


def test_names_and_artefacts_have_no_weights_to_export():
    with pytest.raises(ConfigError, match="weights"):
        open_weights("vit_small_patch16")
    with pytest.raises(ConfigError, match="exported"):
        open_weights("some.onnx")


@pytest.mark.parametrize("change", [{"artefact": "../other.onnx"}, {"artefact": "/etc/passwd"}, {"threads": 10**9}])
def test_the_choice_is_a_file_of_its_folder(tmp_path, change):
    about = {"artefact": "model.onnx", "threads": 1, "half": False, "dynamic": False, **change}
    (tmp_path / "fastest.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match="damaged"):
        open_engine(tmp_path)
