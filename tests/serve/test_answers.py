"""The answers of the library's own tasks, as the service gives them and describes them."""

import asyncio
import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.small_detector import SIZE, detector, picture_file
from support.small_service import FakeEngine, Halves, app, ask, picture, post
from torch import Tensor

from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget, Target
from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.serve.overlay import MIN_SIDE
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.many import ManyConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.tasks.task import TaskConfig

NAMES = ("one", "two", "three")
CASES: list[tuple[str, TaskConfig, Target]] = [
    ("logits", ClassifyConfig(), ClassTarget(classes=NAMES)),
    ("logits", ClassifyConfig(), LabelsTarget(classes=NAMES)),
    ("numbers", RegressConfig(), NumbersTarget(names=NAMES)),
]


class Fixed(FakeEngine):
    """The same outputs for every image."""

    output: str

    def of_means(self, means: Tensor) -> dict[str, Tensor]:
        return {self.output: torch.tensor([[0.5, 2.0, -1.0]]).repeat(len(means), 1)}


@pytest.mark.parametrize(("output", "config", "target"), CASES, ids=["class", "labels", "numbers"])
def test_answers_and_explanations_of_a_task(output: str, config: TaskConfig, target: Target) -> None:
    engine = Fixed(config.build(None, {target.field: target}))
    engine.output = output
    of = app(engine, explainer=Halves())
    (found,) = post(of, "/predict?display=1", picture(), content_type="image/png").data["predictions"]
    described = asyncio.run(ask(of, "/openapi.json")).data["components"]["schemas"]["Answer"]
    check(found, described)
    bars = found["display"]["bars"]
    assert {bar["label"] for bar in bars} == set(NAMES)
    for bar in bars:
        assert 0 <= bar["share"] <= 1
        assert bar["low"] is None or 0 <= bar["low"] <= bar["high"] <= 1
    explained = post(of, "/explain?target=three", picture(), content_type="image/png").data
    check(explained, described)
    assert explained["target"] == {"index": 2, "name": "three"}
    assert post(of, "/explain", picture(), content_type="image/png").status == 200


class Two(FakeEngine):
    """A class and a number of every image."""

    def of_means(self, means: Tensor) -> dict[str, Tensor]:
        numbers = torch.tensor([[0.5, 2.0, -1.0]]).repeat(len(means), 1)
        return {"classify.logits": numbers, "regress.numbers": numbers}


def test_the_page_gets_the_answer_of_each_of_many_tasks() -> None:
    schema = {"label": ClassTarget(classes=NAMES), "numbers": NumbersTarget(names=NAMES)}
    many = ManyConfig(tasks={"classify": ClassifyConfig(), "regress": RegressConfig()})
    of = app(Two(many.build(None, schema)), explainer=Halves())
    (found,) = post(of, "/predict?display=1", picture(), content_type="image/png").data["predictions"]
    check(found, asyncio.run(ask(of, "/openapi.json")).data["components"]["schemas"]["Answer"])
    assert found["classify"]["answers"][0]["label"] == "two"
    assert [part["name"] for part in found["display"]["parts"]] == ["classify", "regress"]
    assert found["display"]["bars"][0]["label"] == "classify:two"
    explained = post(of, "/explain?target=regress:three", picture(), content_type="image/png").data
    assert explained["target"] == {"index": 5, "name": "regress:three"}


def test_boxes_are_in_pixels_of_the_picture(tmp_path: Path) -> None:
    model, file = detector(), picture_file(tmp_path)
    of = app(TorchEngine(model), explainer=Halves())
    (found,) = post(of, "/predict?display=1", file.read_bytes(), content_type="image/png").data["predictions"]
    (expected,) = model.predict(file)
    assert found["boxes"] == expected.answer.to_json()["boxes"]
    corners = torch.tensor([box["box"] for box in found["boxes"]])
    assert corners.min() >= 0
    assert corners[:, 3].max() > 64  # further down than the model's input reaches
    assert corners[:, 2].max() <= SIZE[1]
    assert corners[:, 3].max() <= SIZE[0]
    drawing = Image.open(BytesIO(base64.b64decode(found["display"]["drawing"].partition(",")[2])))
    assert drawing.size == (round(SIZE[1] * MIN_SIDE / SIZE[0]), MIN_SIDE)  # the shape of the picture
    explained = post(of, "/explain?target=box+1", file.read_bytes(), content_type="image/png").data
    assert explained["boxes"] == found["boxes"]
    assert explained["target"]["name"] == "box 1"


def check(data: Any, schema: dict[str, Any]) -> None:
    """A small part of JSON schema: required keys, types of values, items of lists."""
    kinds = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int, "boolean": bool}
    kinds["null"] = type(None)
    allowed = schema.get("type", list(kinds))
    assert any(isinstance(data, kinds[kind]) for kind in ([allowed] if isinstance(allowed, str) else allowed))
    for name in schema.get("required", ()):
        assert name in data
    for name, inner in schema.get("properties", {}).items():
        if name in data:
            check(data[name], inner)
    for item in data if "items" in schema else ():
        check(item, schema["items"])
