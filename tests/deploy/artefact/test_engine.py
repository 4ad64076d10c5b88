import numpy as np
import pytest
import torch
from PIL import Image
from support.shipped import LABELS, NUMBERS, RECIPE, first, outputs, photos, trained

from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.packing import Packed
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.opening import open_engine
from vitrail.errors import CheckpointError, InputError
from vitrail.runs.evaluate import evaluate_model
from vitrail.runs.predict import predict

ARTEFACTS = ("model.pt2", "model.onnx", "model.xml")


@pytest.mark.parametrize("name", ARTEFACTS)
def test_every_artefact_answers_as_the_model_does(name, shipped, model):
    engine, images = open_engine(shipped[0] / name), photos(5)
    expected = outputs(TorchEngine(model), images)
    found = outputs(engine, images)
    assert list(found) == list(expected) == ["logits", "probabilities"]
    for output in expected:
        torch.testing.assert_close(found[output], expected[output], atol=1e-4, rtol=1e-4)
    assert engine.task.output_names == LABELS
    assert engine.task.state() == model.task.state()
    assert engine.preprocess == model.preprocess
    assert engine.about == model.about
    assert engine.card.licence == "CC0-1.0"
    assert engine.card.recipe == RECIPE
    assert "float32" in engine.backend


@pytest.mark.parametrize("name", ARTEFACTS)
def test_every_artefact_of_a_regression_gives_its_numbers(name, shipped_numbers, numbers):
    engine, images = open_engine(shipped_numbers[0] / name), photos(5)
    expected = outputs(TorchEngine(numbers), images)
    found = outputs(engine, images)
    assert list(found) == ["numbers"]
    torch.testing.assert_close(found["numbers"], expected["numbers"], atol=1e-3, rtol=1e-4)
    assert engine.task.output_names == NUMBERS
    wanted, said = (one.task.decode(outputs)[0].to_json() for one, outputs in ((numbers, expected), (engine, found)))
    for ours, theirs in zip(said["numbers"], wanted["numbers"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3), "with its interval"


@pytest.mark.parametrize("name", ARTEFACTS)
def test_the_graph_takes_any_batch_size_and_channels(name, shipped, model):
    engine, eager = open_engine(shipped[0] / name), TorchEngine(model)
    for shape in ((1, 31, 44, 3), (3, 90, 20, 1), (2, 8, 8, 4)):
        images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        np.testing.assert_allclose(first(engine.run(images)), first(eager.run(images)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["model.onnx", None])
def test_predict_and_evaluate_take_an_engine(name, shipped, model):
    engine = TorchEngine(model) if name is None else open_engine(shipped[0] / name)
    images = photos(7)
    by_engine, by_model = predict(engine, images, top=2), model.predict(images, top=2)
    for ours, theirs in zip(by_engine, by_model, strict=True):
        assert [one.label for one in ours.answer.candidates] == [one.label for one in theirs.answer.candidates]
    assert [repr(one) for one in engine.predict(images, top=2)] == [repr(one) for one in by_engine]
    fitted = torch.cat([model.preprocess.fit(image[None])[0] for image in images])
    labels = torch.arange(7) % 5
    packed = Packed(
        images=fitted,
        targets={"label": labels},
        ids=torch.arange(7),
        sizes=torch.tensor([image.shape[1:] for image in images]),
        schema=model.task.schema,
        name="some",
        stored=model.preprocess,
    )
    found = [
        evaluate_model(one, Batches(packed, batch_size=3, seed=0, shuffle=False, device=torch.device("cpu")))
        for one in (engine, model)
    ]
    assert found[0].metrics == pytest.approx(found[1].metrics, abs=1e-4)


@pytest.mark.parametrize(
    "way",
    [{"crop": 0.9}, {"resize": "crop", "crop": 0.875}, {"resize": "squash", "crop": 0.8, "interpolation": "bilinear"}],
    ids=str,
)
def test_fitted_images_are_not_cropped_twice(way):
    engine = TorchEngine(trained(preprocess=way))
    fitted = engine.fitted(photos(3))
    by_graph, direct = Engine.outputs(engine, fitted), engine.outputs(fitted)
    torch.testing.assert_close(by_graph["logits"], direct["logits"], atol=1e-4, rtol=1e-4)


def test_a_trained_model_runs_with_preprocessing_that_no_graph_has():
    engine = TorchEngine(trained(preprocess={"resize": "pad", "interpolation": "nearest"}))
    assert outputs(engine, photos(2))["logits"].shape == (2, 5)


def test_images_come_as_tensors_arrays_pil_and_batches(model):
    engine, images = TorchEngine(model), photos(3)
    wanted = outputs(engine, images)
    assert wanted["logits"].shape == (3, 5)
    arrays = [image.permute(1, 2, 0).numpy() for image in images]
    torch.testing.assert_close(outputs(engine, arrays), wanted)
    torch.testing.assert_close(outputs(engine, [Image.fromarray(array) for array in arrays]), wanted)
    torch.testing.assert_close(outputs(engine, engine.fitted(images)), wanted)
    assert outputs(engine, [images[0][0].numpy()])["logits"].shape == (1, 5), "H W is grey"


@pytest.mark.parametrize("bad", [torch.zeros(3, 4, 4), torch.zeros(4, 4, dtype=torch.uint8), np.zeros((4, 4, 2), "u1")])
def test_what_is_not_an_image_is_refused(bad, model):
    with pytest.raises(InputError, match="uint8"):
        outputs(TorchEngine(model), [bad])


def test_no_images_are_refused(model):
    with pytest.raises(InputError, match="images"):
        outputs(TorchEngine(model), [])


def test_a_graph_that_cannot_compute_an_image_is_said_with_its_file(shipped, monkeypatch):
    engine = open_engine(shipped[0] / "model.pt2")
    failing = RuntimeError("expected at most 999 rows\nand a long trace")
    monkeypatch.setattr(engine, "run", lambda images: (_ for _ in ()).throw(failing))
    with pytest.raises(CheckpointError, match=r"model\.pt2") as caught:
        predict(engine, photos(1))
    assert "long trace" not in str(caught.value)
