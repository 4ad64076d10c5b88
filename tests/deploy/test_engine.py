import json

import numpy as np
import pytest
import torch
from shipped import LABELS, opened, photos

from vitrail.deploy import engine as engines
from vitrail.deploy.engine import CHOICE, TorchEngine, is_artefact, open_engine
from vitrail.errors import CheckpointError, ConfigError, InputError

ARTEFACTS = ("model.pt2", "model.onnx", "model.xml")


@pytest.mark.parametrize("name", ARTEFACTS)
def test_every_artefact_answers_as_the_model_does(name, shipped, model):
    engine, pictures = open_engine(shipped[0] / name), photos(5)
    eager = TorchEngine("eager", model)
    torch.testing.assert_close(engine.predict(pictures), eager.predict(pictures), atol=1e-4, rtol=1e-4)
    assert engine.labels == LABELS
    assert engine.image_size == model.task.backbone.config.image_size
    assert engine.about == model.about
    assert engine.card.licence == "CC0-1.0"
    assert engine.card.recipe == {"epochs": 3}
    assert "float32" in engine.backend


@pytest.mark.parametrize("name", ARTEFACTS)
def test_the_graph_takes_any_batch_size_and_channels(name, shipped, model):
    engine, eager = open_engine(shipped[0] / name), TorchEngine("eager", model)
    for shape in ((1, 31, 44, 3), (3, 90, 20, 1), (2, 8, 8, 4)):
        images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        np.testing.assert_allclose(engine.run(images), eager.run(images), atol=1e-4, rtol=1e-4)


def test_pictures_come_as_tensors_arrays_and_batches(model):
    engine, pictures = TorchEngine("eager", model), photos(3)
    wanted = engine.predict(pictures)
    assert wanted.shape == (3, 5)
    torch.testing.assert_close(engine.predict([image.permute(1, 2, 0).numpy() for image in pictures]), wanted)
    torch.testing.assert_close(engine.predict(engine.fitted(pictures)), wanted)
    assert engine.predict([]).shape == (0, 5)
    assert engine.predict([pictures[0][0].numpy()]).shape == (1, 5), "H W is grey"


@pytest.mark.parametrize("bad", [torch.zeros(3, 4, 4), torch.zeros(4, 4, dtype=torch.uint8), np.zeros((4, 4, 2), "u1")])
def test_what_is_no_picture_is_refused(bad, model):
    with pytest.raises(InputError, match="must be uint8"):
        TorchEngine("eager", model).predict([bad])


def test_chosen_follows_the_kind_of_labels():
    one, several = TorchEngine("x", opened()), TorchEngine("x", opened(multi_label=True))
    rows = torch.tensor([[0.3, 0.45, 0.1, 0.1, 0.05]])
    assert one.chosen(rows).tolist() == [[False, True, False, False, False]]
    assert several.chosen(rows).tolist() == [[True, True, False, False, False]]


def test_a_folder_opens_its_fastest(shipped, tmp_path):
    (tmp_path / "model.onnx").write_bytes((shipped[0] / "model.onnx").read_bytes())
    assert not is_artefact(tmp_path)
    (tmp_path / CHOICE).write_text(json.dumps({"artefact": "model.onnx", "threads": 1}))
    assert is_artefact(tmp_path)
    assert open_engine(tmp_path).source == str(tmp_path / "model.onnx")
    (tmp_path / CHOICE).write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        open_engine(tmp_path)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".xml"])
def test_damaged_and_missing_files_are_told(suffix, tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        open_engine(tmp_path / f"a{suffix}")
    (tmp_path / f"a{suffix}").write_bytes(b"no model at all")
    with pytest.raises(CheckpointError, match=f"a{suffix}"):
        open_engine(tmp_path / f"a{suffix}")


def test_a_run_needs_someone_to_open_it(tmp_path, model):
    with pytest.raises(ConfigError, match="open_trained"):
        open_engine(tmp_path)
    assert open_engine(tmp_path, open_run=lambda _: model).labels == LABELS


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr(engines.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ConfigError, match=r"vitrail\[deploy\]"):
        engines.needs("onnxruntime")
