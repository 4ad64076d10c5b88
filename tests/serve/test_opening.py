"""What a worker opens, with engines and explainers from outside."""

import pickle

import pytest
from support.small_service import Brightness, Halves

from vitrail.errors import ConfigError
from vitrail.serve.opening import Opening

OPENED: list[tuple[str, int | None]] = []


def engine(path: str, threads: int | None) -> Brightness:
    OPENED.append((path, threads))
    return Brightness()


def explainer(path: str) -> tuple[Halves, tuple[str, ...]] | None:
    names = {"run": ("dark", "middle", "bright"), "other": ("cat", "dog")}
    return (Halves(), names[path]) if path in names else None


def opening(model: str, **options: object) -> Opening:
    made = Opening(model=model, open_engine=engine, open_explainer=explainer, threads=1, **options)
    return pickle.loads(pickle.dumps(made))


def test_a_run_explains_itself_and_an_artefact_needs_its_run() -> None:
    assert opening("run")().explainer is not None
    assert opening("model.onnx")().explainer is None
    assert opening("model.onnx", explain="run")().explainer is not None
    assert OPENED == [("run", 1), ("model.onnx", 1), ("model.onnx", 1)]


def test_the_explained_model_must_have_the_same_outputs() -> None:
    with pytest.raises(ConfigError, match="different names"):
        opening("model.onnx", explain="other")()
