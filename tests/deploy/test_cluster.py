"""Two workers of a local Ray answer as one process does; without Ray there is one sentence."""

import importlib.util
import json
import sys
from dataclasses import asdict

import pytest
from PIL import Image

from vitrail.deploy.bulk import bulk
from vitrail.deploy.cluster import Worker, answer_by_cluster, needs_ray
from vitrail.deploy.engine import open_engine
from vitrail.deploy.pictures import answer_pictures, find_pictures
from vitrail.errors import ConfigError

ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: vitrail[ray]")


@ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own options
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_two_workers_answer_every_picture_once(shipped, tmp_path):
    for number in range(10):
        Image.new("RGB", (20, 30), (25 * number, 90, 200 - 20 * number)).save(tmp_path / f"{number}.png")
    (tmp_path / "9.png").write_bytes(b"broken")
    engine, pictures = open_engine(shipped[0] / "model.onnx"), list(find_pictures([tmp_path]))
    expected = {found.path: found for found in answer_pictures(engine, pictures, top=2)}
    out = tmp_path / "found.jsonl"
    told = bulk(pictures, out, lambda left: answer_by_cluster(engine, left, top=2, workers=2, together=3), model="m@1")
    assert told == (10, 10, 1)
    assert bulk(pictures, out, lambda left: answer_by_cluster(engine, left), model="m@1") == (10, 0, 1)
    for row in map(json.loads, out.read_text().splitlines()):
        first = next(iter(expected[row["path"]].answers), None)
        assert row["label"] == (first and first.label)
        assert row["probability"] == (first and pytest.approx(first.probability, abs=1e-5))


@pytest.mark.parametrize(("name", "way"), [("model.xml", {"half": True}), ("model.onnx", {"dynamic": True})])
def test_a_worker_opens_a_model_as_it_was_opened(name, way, shipped, tmp_path):
    Image.new("RGB", (20, 30), (25, 90, 200)).save(tmp_path / "one.png")
    engine, pictures = open_engine(shipped[0] / name, threads=1, **way), list(find_pictures([tmp_path]))
    worker = Worker(engine.source, {"threads": 1, **way}, 2)
    assert worker.engine.backend == engine.backend
    told = worker({"picture": [json.dumps(["its name", str(tmp_path / "one.png"), 0, None])]})
    (found,) = answer_pictures(engine, pictures, top=2)
    assert told["said"] == [json.dumps({**asdict(found), "path": "its name"})]


def test_nobody_cannot_share_the_work(monkeypatch):
    monkeypatch.setattr("vitrail.deploy.cluster.needs_ray", lambda: None)
    with pytest.raises(ConfigError, match="0 workers cannot share"):
        next(answer_by_cluster(None, [], workers=0))


def test_without_ray_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ConfigError, match=r"vitrail\[ray\]"):
        needs_ray()
