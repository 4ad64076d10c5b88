"""Two workers of a local Ray predict what one process does; without Ray the error says what to install."""

import importlib.util
import json
import sys

import pytest
from PIL import Image
from support.shipped import trained

from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.bulk.cluster import Worker, needs_ray, predict_on_cluster
from vitrail.deploy.bulk.image_files import find_images, predict_images
from vitrail.deploy.bulk.prediction_table import bulk
from vitrail.deploy.bulk.table_files import row_of
from vitrail.errors import ConfigError

ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'ray[data]'"
)


@ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own options
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_two_workers_predict_every_image_once(shipped, tmp_path):
    for number in range(10):
        Image.new("RGB", (20, 30), (25 * number, 90, 200 - 20 * number)).save(tmp_path / f"{number}.png")
    (tmp_path / "9.png").write_bytes(b"broken")
    engine, images = open_engine(shipped[0] / "model.onnx"), list(find_images([tmp_path]))
    columns = engine.task.columns
    expected = {one.path: row_of(one, columns) for one in predict_images(engine, images, top=2)}
    out, about = tmp_path / "found.jsonl", {"columns": columns, "model": "m@1"}
    done = bulk(images, out, lambda left: predict_on_cluster(engine, left, top=2, workers=2, batch=3), **about)
    assert done == (10, 10, 1)
    assert bulk(images, out, lambda left: predict_on_cluster(engine, left), **about) == (10, 0, 1)
    for row in map(json.loads, out.read_text().splitlines()):
        same = expected[row["path"]]
        assert row["label"] == same["label"]
        assert row["probability"] == (same["probability"] and pytest.approx(same["probability"], abs=1e-5))


@pytest.mark.parametrize("fixture", ["shipped", "shipped_numbers"])
@pytest.mark.parametrize(("name", "way"), [("model.xml", {"half": True}), ("model.onnx", {"dynamic": True})])
def test_a_worker_opens_a_model_as_it_was_opened(name, way, fixture, request, tmp_path):
    path = request.getfixturevalue(fixture)[0] / name
    Image.new("RGB", (20, 30), (25, 90, 200)).save(tmp_path / "one.png")
    engine, images = open_engine(path, threads=1, **way), list(find_images([tmp_path]))
    worker = Worker(engine.source, {"threads": 1, **way}, 2)
    assert worker.engine.backend == engine.backend
    found = worker({"image": [json.dumps(["its name", str(tmp_path / "one.png"), 0, None])]})
    (expected,) = predict_images(engine, images, top=2)
    assert json.loads(found["row"][0]) == {**row_of(expected, engine.task.columns), "path": "its name"}


def test_workers_and_source_are_checked(monkeypatch):
    monkeypatch.setattr("vitrail.deploy.bulk.cluster.needs_ray", lambda: None)
    with pytest.raises(ConfigError, match="--ray 0"):
        next(predict_on_cluster(None, [], workers=0))
    with pytest.raises(ConfigError, match="artefacts"):
        next(predict_on_cluster(TorchEngine(trained()), []))


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ConfigError, match=r"ray\[data\]"):
        needs_ray()
