import json

import numpy as np
import pytest

from vitrail.deploy.bench import Bench, BenchConfig, Timed, artefacts_in, bench, open_artefacts, remember
from vitrail.deploy.engine import CHOICE, TorchEngine, open_engine
from vitrail.deploy.timing import Spread
from vitrail.errors import ConfigError


def test_artefacts_and_a_run_side_by_side(shipped, model):
    out, _ = shipped
    engines = {"run": TorchEngine("run", model)} | open_artefacts(artefacts_in(out)[:2])
    pixels = np.zeros((2, 24, 16, 3), np.uint8)
    found = bench(engines, pixels, BenchConfig(batches=(1, 3), rounds=2))
    assert [(row.name, row.batch) for row in found.rows] == [(name, batch) for batch in (1, 3) for name in engines]
    assert found.base == "run"
    assert all(row.speed == (1.0, 1.0, 1.0) for row in found.rows if row.name == "run")
    assert "times run" in found.report()["Side by side"].columns


def timed(name: str, batch: int, speed: float) -> Timed:
    return Timed(
        name=name, backend="x", batch=batch, milliseconds=Spread(1, 1, 1), throughput=1.0, speed=Spread(speed, 0, 9)
    )


def test_the_best_is_the_best_over_all_batches_and_remembered(shipped, tmp_path):
    rows = (timed("run", 1, 9.0), timed("a.onnx, 1 threads", 1, 4.0), timed("b.xml", 1, 1.0))
    rows += (timed("run", 16, 9.0), timed("a.onnx, 1 threads", 16, 1.0), timed("b.xml", 16, 3.0))
    found = Bench(rows=rows, base="run", sizes={})
    assert found.best == "run"
    assert remember(found, tmp_path) is None, "a run is no artefact of the folder"
    (tmp_path / "a.onnx").write_bytes((shipped[0] / "model.onnx").read_bytes())
    (tmp_path / "b.xml").touch()
    assert remember(found, tmp_path) == tmp_path / CHOICE
    choice = json.loads((tmp_path / CHOICE).read_text())
    assert (choice["artefact"], choice["threads"]) == ("a.onnx", 1)
    assert open_engine(tmp_path).source.endswith("a.onnx")


def test_threads_are_tried_up_to_the_cores(shipped):
    path = shipped[0] / "model.onnx"
    assert list(open_artefacts([path], (1,))) == ["model.onnx"]
    with pytest.raises(ConfigError, match="cores"):
        open_artefacts([path], (100_000,))
    with pytest.raises(ConfigError, match="nothing to measure"):
        bench({}, np.zeros((1, 2, 2, 3), np.uint8))
