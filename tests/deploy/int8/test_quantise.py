import numpy as np
import onnx
import pytest
import torch
from support.shipped import photos

from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.int8 import judge
from vitrail.deploy.int8 import quantise as module
from vitrail.deploy.int8.judge import Closeness
from vitrail.deploy.int8.onnx_matmuls import Layer, find_layers
from vitrail.deploy.int8.quantise import QuantiseConfig, Range, fewest_kept, quantise, sensitivity
from vitrail.errors import DataError, Unsupported
from vitrail.tasks.classify import Classify
from vitrail.tasks.task import Agreement


@pytest.fixture(scope="module")
def pixels(model):
    return at_size(photos(40), (24, 16), model.preprocess)


@pytest.mark.parametrize("fixture", ["shipped", "shipped_numbers"])
def test_int8_is_close_and_truly_int8(fixture, request, pixels):
    shipped = request.getfixturevalue(fixture)
    plain, small = (open_engine(shipped[0] / name) for name in ("model.onnx", "model.int8.onnx"))
    assert small.card.precision == "int8"
    assert 0.98 < plain.task.agreement(plain.run(pixels), small.run(pixels)).cosine < 1
    stored = onnx.load(shipped[0] / "model.int8.onnx").graph.initializer
    levels = [tensor for tensor in stored if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2]
    assert len(levels) == len(find_layers(onnx.load(shipped[0] / "model.onnx"))) - len(small.card.kept)
    scales = {tensor.name: tensor.dims for tensor in stored if tensor.name.endswith(".scale")}
    assert all(scales[tensor.name.replace(".int8", ".scale")][0] == tensor.dims[1] for tensor in levels), "per channel"


def test_levels_by_hand():
    span = Range(-1.0, 1.55, 0.0, np.zeros((1, 1)))
    assert (span.zero, span.scale) == (100, pytest.approx(0.01))
    np.testing.assert_allclose(span.rounded(np.array([0.123, 9.0, -9.0])), [0.12, 1.55, -1.0], atol=1e-9)


def test_an_outlier_makes_a_layer_sensitive():
    draw = np.random.default_rng(0)
    rows, weights = draw.normal(size=(64, 8)), draw.normal(size=(8, 4)).astype(np.float32)
    calm = sensitivity(Layer("calm", "a", "x", weights), Range(-4, 4, 0, rows))
    wild = sensitivity(Layer("wild", "b", "x", weights), Range(-400, 400, 0, rows))
    assert calm < 0.02 < 0.2 < wild


def test_harm_sends_the_worst_layers_back(shipped, pixels, tmp_path, monkeypatch):
    """With ranges that are far too wide for one layer's input, that layer alone returns to floating point."""
    true = module.calibrate

    def spoiled(model, layers, *rest, **options):
        ranges = true(model, layers, *rest, **options)
        (bad,) = [layer.input for layer in layers if layer.name == "blocks.1.mlp.fc2"]
        ranges[bad].low, ranges[bad].high = -1e6, 1e6
        return ranges

    monkeypatch.setattr(module, "calibrate", spoiled)
    # The least cosine stands in for the agreement: a random model may give all images the same answer.
    agreement = Classify.agreement
    monkeypatch.setattr(Classify, "agreement", lambda *some: Agreement(0.0, *[agreement(*some).cosine] * 2))
    config = QuantiseConfig(calibrate=8, agreement=0.98)
    found = quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels], config)
    assert "blocks.1.mlp.fc2" in found.kept
    assert len(found.kept) < 4
    assert found.enough
    assert max(found.errors, key=found.errors.get) == "blocks.1.mlp.fc2"
    assert "blocks.1.mlp.fc2" in found.sections()[1].text
    assert open_engine(tmp_path / "q.onnx").card.kept == found.kept


@pytest.mark.parametrize("needed", [0, 1, 5, 31, 47, 48])
def test_as_few_layers_as_needed_stay_float(needed):
    tried = []

    def attempt(kept):
        tried.append(kept)
        return Closeness(1.0, 1.0) if kept >= needed else None

    assert fewest_kept(attempt, 48) == (needed, (1.0, 1.0))
    assert tried[0] == 0
    assert tried[-1] == needed, "what was written last is what was chosen"
    assert len(tried) <= 8


def test_what_is_good_at_one_size_alone_sends_layers_back(shipped, model, pixels, tmp_path, monkeypatch):
    """At the larger size answers are good enough only where a layer is kept; at the model's own they always are."""
    larger = at_size(photos(40), (36, 24), model.preprocess)
    true, seen = judge.closeness, []

    def picky(engine, images, *rest):
        seen.append((images.shape[1:3], len(engine.card.kept)))
        return None if images.shape[1] == 36 and not engine.card.kept else true(engine, images, *rest)

    monkeypatch.setattr(judge, "closeness", picky)
    config = QuantiseConfig(calibrate=8, agreement=0.0, cosine=0.0)
    found = quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels, larger], config)
    assert len(found.kept) == 1
    assert seen[:2] == [((24, 16), 0), ((36, 24), 0)]
    assert seen[-2:] == [((24, 16), 1), ((36, 24), 1)]


def test_the_report_has_size_agreement_and_drift(shipped, pixels, tmp_path):
    config = QuantiseConfig(calibrate=8, agreement=0.5)
    found = quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels], config)
    facts = found.sections()[0].values
    assert facts["int8"] < facts["float32"]
    assert facts["validation images"] == 32
    assert "200" in found.sections()[1].text
    assert all(0 <= share < 0.2 for share in found.outside.values())


def test_one_image_is_too_few(shipped, pixels, tmp_path):
    with pytest.raises(DataError, match="images"):
        quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels[:1]])


def test_a_model_without_linear_layers_is_refused(shipped, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_layers", lambda _: [])
    with pytest.raises(Unsupported, match="leave out --int8"):
        quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels])


def test_where_labels_are_known_the_metric_decides(shipped, pixels, tmp_path, monkeypatch):
    """Layers go back to floating point until the accuracy is that of float32, however different the answers are."""
    plain = open_engine(shipped[0] / "model.onnx")
    truth = {"label": torch.from_numpy(plain.run(pixels)["logits"].argmax(axis=1))}
    monkeypatch.setattr(Classify, "int8_loss", 0.005, raising=False)
    config = QuantiseConfig(calibrate=8, agreement=1.0, cosine=1.0)
    found = quantise(shipped[0] / "model.onnx", tmp_path / "q.onnx", [pixels], config, truth=truth)
    assert found.enough
    assert found.lost.before == 1.0
    assert found.lost.after >= 0.995
    assert found.validated == len(pixels) - 8
    facts = found.sections()[0].values
    assert (facts["accuracy, float32"], facts["accuracy, int8"]) == (1.0, found.lost.after)
