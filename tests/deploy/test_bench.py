import json
from dataclasses import replace

import numpy as np
import pytest
from support.shipped import Skewed, photos, trained

from vitrail.deploy import bench as module
from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.opening import CHOICE, artefacts_in, open_engine
from vitrail.deploy.bench import Bench, BenchConfig, Timed, bench, remember
from vitrail.deploy.contenders import open_artefacts
from vitrail.errors import ConfigError
from vitrail.timing import Spread


@pytest.mark.parametrize(("fixture", "kind"), [("shipped", "class"), ("shipped_numbers", "numbers")])
def test_artefacts_and_a_run_side_by_side(fixture, kind, request):
    out, _ = request.getfixturevalue(fixture)
    eager = TorchEngine(trained(kind=kind, **({"depth": 1} if kind == "numbers" else {})))
    pixels = at_size(photos(4), (24, 16), eager.preprocess)
    if kind == "class":  # whatever its answer is, it is not that
        wrong = Skewed(eager, -1e4 * np.eye(5)[eager.run(pixels)["logits"][0].argmax()])
    else:
        wrong = Skewed(eager, [3.0, 0.0])  # a quarter of the deviation
    engines = {"run": eager, "wrong": wrong} | open_artefacts(artefacts_in(out)[:2], (1,))
    found = bench(engines, pixels, BenchConfig(batches=(1, 3), rounds=2))
    assert [(row.name, row.batch) for row in found.rows] == [(name, batch) for batch in (1, 3) for name in engines]
    assert found.base == "run"
    assert all(row.speed == (1.0, 1.0, 1.0) for row in found.rows if row.name == "run")
    assert found.agreement["run"] == 1
    assert found.agreement["wrong"] < 1
    assert "wrong" not in found.ranked, "an engine with other answers is never chosen"
    assert {"times run", "same answer"} <= set(found.report()["Side by side"].columns)


def test_models_of_other_tasks_are_not_compared(model):
    eager, other = TorchEngine(model), TorchEngine(trained(kind="numbers"))
    with pytest.raises(ConfigError, match="compared"):
        bench({"run": eager, "other": other}, at_size(photos(1), (24, 16), eager.preprocess))
    renamed = Skewed(eager, 0)
    renamed.card = replace(eager.card, schema={"label": replace(eager.card.schema["label"], classes=tuple("vwxyz"))})
    with pytest.raises(ConfigError, match="compared"):
        bench({"run": eager, "other": renamed}, at_size(photos(1), (24, 16), eager.preprocess))


def timed(name: str, batch: int, speed: float) -> Timed:
    return Timed(
        name=name, batch=batch, milliseconds=Spread(1, 1, 1), throughput=1.0, speed=Spread(speed, 0, 9), rounds=1
    )


def test_the_best_is_the_best_over_all_batches_and_remembered(shipped, model, tmp_path):
    (tmp_path / "a.onnx").write_bytes((shipped[0] / "model.onnx").read_bytes())
    engines = {"run": TorchEngine(model), "a": open_engine(tmp_path / "a.onnx", threads=1)}
    engines |= {"b": open_engine(shipped[0] / "model.onnx"), "c": open_engine(tmp_path / "a.onnx", threads=2)}
    speeds = {"run": (9.0, 9.0), "a": (4.0, 1.0), "b": (1.0, 3.0), "c": (20.0, 20.0)}
    rows = tuple(timed(name, batch, speed[batch > 1]) for batch in (1, 16) for name, speed in speeds.items())
    agreement = {"run": 1.0, "a": 1.0, "b": 1.0, "c": 0.9}
    found = Bench(rows=rows, base="run", engines=engines, agreement=agreement, images=10, needed=0.99)
    assert found.ranked == ["run", "a", "b"]
    (tmp_path / "empty").mkdir()
    assert remember(found, tmp_path / "empty") is None, "none of them is of this folder"
    assert remember(found, tmp_path) == tmp_path / CHOICE
    choice = json.loads((tmp_path / CHOICE).read_text())
    assert (choice["artefact"], choice["threads"], choice["half"]) == ("a.onnx", 1, False)
    chosen = open_engine(tmp_path)
    assert (chosen.source, chosen.threads) == (str(tmp_path / "a.onnx"), 1)


@pytest.mark.parametrize(("stem", "backend"), [("model", ", bf16"), ("model.int8", "int8 with bf16")])
def test_artefacts_of_openvino_are_tried_in_bf16_and_remembered(stem, backend, shipped, tmp_path):
    for name in (f"{stem}.xml", f"{stem}.bin"):
        (tmp_path / name).write_bytes((shipped[0] / name).read_bytes())
    engines = open_artefacts(artefacts_in(tmp_path), (1,))
    assert list(engines) == [f"{stem}.xml", f"{stem}.xml, bf16"]
    assert [engine.half for engine in engines.values()] == [False, True]
    rows = tuple(timed(name, 1, speed) for name, speed in zip(engines, (1.0, 2.0), strict=True))
    agreement = dict.fromkeys(engines, 1.0)
    found = Bench(rows=rows, base=rows[0].name, engines=engines, agreement=agreement, images=1, needed=0.99)
    remember(found, tmp_path)
    assert open_engine(tmp_path).backend.endswith(backend)


def test_float32_of_onnx_is_tried_in_int8_without_calibration_and_remembered(shipped, model, tmp_path):
    (tmp_path / "model.onnx").write_bytes((shipped[0] / "model.onnx").read_bytes())
    engines = open_artefacts(artefacts_in(tmp_path), (1,))
    assert list(engines) == ["model.onnx", "model.onnx, dynamic int8"]
    rows = tuple(timed(name, 1, speed) for name, speed in zip(engines, (1.0, 2.0), strict=True))
    agreement = dict.fromkeys(engines, 1.0)
    found = Bench(rows=rows, base=rows[0].name, engines=engines, agreement=agreement, images=1, needed=0.99)
    remember(found, tmp_path)
    assert "dynamic int8" in open_engine(tmp_path).backend


class Slow(Skewed):
    """Takes its time, by a clock of the test."""

    now = 0.0

    def __init__(self, other: Engine, seconds: float) -> None:
        super().__init__(other, 0.0)
        self.seconds, self.calls = seconds, 0
        self.backend = "one kind" if seconds > 1 else "another"

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        self.calls += 1
        Slow.now += self.seconds * len(images)
        return super().run(images)


def test_who_is_slow_leaves_early_but_the_base_stays(model, monkeypatch):
    monkeypatch.setitem(module._CLOCKS, "processor", lambda: Slow.now)
    eager = TorchEngine(model)
    pace = {"base": 9.0, "fast": 1.0, "near": 1.5, "far": 4.0}
    engines = {name: Slow(eager, seconds) for name, seconds in pace.items()}
    pixels = at_size(photos(2), (24, 16), eager.preprocess)
    found = bench(engines, pixels, BenchConfig(batches=(2,), rounds=5, clock="processor"))
    assert {row.name: row.rounds for row in found.rows} == {"base": 5, "fast": 5, "near": 5, "far": 2}
    assert {row.name: row.speed.median for row in found.rows} == {"base": 1, "fast": 9, "near": 6, "far": 9 / 4}
    assert [row.milliseconds.median for row in found.rows] == [18000, 2000, 3000, 8000]
    assert [engine.calls for engine in engines.values()] == [8, 8, 7, 4], "engines of one kind run once"


def test_nothing_to_measure_is_refused():
    with pytest.raises(ConfigError, match="nothing"):
        bench({}, np.zeros((1, 2, 2, 3), np.uint8))
