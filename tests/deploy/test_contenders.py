import numpy as np
import pytest
from support.run_folder import run_folder
from support.shipped import first, photos

from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.contenders import base_of, open_artefacts, open_compiled, open_contenders
from vitrail.errors import ConfigError


def test_folders_files_and_runs_are_opened_by_name(shipped, tmp_path):
    run = str(run_folder(tmp_path / "run"))
    engines, folders = open_contenders([str(shipped[0]), run], threads=(1,))
    assert folders == [shipped[0]]
    assert {"model.onnx", "model.pt2", "model.xml, bf16", run} <= engines.keys()
    engines, folders = open_contenders([str(shipped[0] / "model.pt2")])
    assert (list(engines), folders) == (["model.pt2"], [])
    with pytest.raises(ConfigError, match="artefact"):
        open_contenders([str(tmp_path / "nothing.png")])


def test_the_base_is_the_last_in_float32(shipped, model):
    engines = open_artefacts([shipped[0] / name for name in ("model.int8.onnx", "model.onnx", "model.xml")], (1,))
    assert list(engines)[-1] == "model.xml, bf16"
    assert base_of(engines) == "model.xml"
    assert base_of(dict(list(engines.items())[:3])) == "model.onnx", "and not its dynamic int8, which comes after it"
    assert base_of({"int8": engines["model.int8.onnx"]}) == "int8"
    both = {"one": engines["model.onnx"], "two": open_engine(shipped[0] / "model.onnx", threads=2)}
    assert base_of(both) == base_of(dict(reversed(both.items()))) == "two", "with all cores"
    eager = TorchEngine(model)
    assert base_of(engines | {"run, compiled": eager, "run": eager}) == "run"


@pytest.mark.slow
def test_a_compiled_run_answers_as_the_eager_one_and_prints_nothing(model, capfd):
    eager = TorchEngine(model)
    pixels = at_size(photos(6), (24, 16), eager.preprocess)
    for name, engine in open_compiled(model).items():
        close = 0.05 if "bf16" in name else 1e-4
        expected = first(eager.run(pixels))
        np.testing.assert_allclose(first(engine.run(pixels)), expected, atol=close * np.abs(expected).max())
        assert "compiled" in engine.backend
    assert capfd.readouterr() == ("", "")


def test_threads_are_tried_up_to_the_cores(shipped):
    path = shipped[0] / "model.onnx"
    assert list(open_artefacts([path], (1,))) == ["model.onnx", "model.onnx, dynamic int8"]
    assert all(name.startswith("model.onnx") for name in open_artefacts([path]))
    with pytest.raises(ConfigError, match="cores"):
        open_artefacts([path], (100_000,))
