import json

import pytest
from support.registered import tiny
from support.shipped import LABELS, NUMBERS, NUMBERS_STATE, RECIPE, trained

from vitrail.deploy.artefact.card import VERSION, Card
from vitrail.errors import CheckpointError, Unsupported
from vitrail.runs.trained import TrainedModel, open_model
from vitrail.tasks.mae import MAEConfig


@pytest.mark.parametrize("kind", ["class", "labels", "numbers"])
def test_a_card_survives_json_and_rebuilds_its_task(kind):
    model = trained(kind=kind, preprocess={"crop": 0.9})
    card = Card.of(model)
    again = Card.from_json(card.to_json(), name="x")
    assert again == card
    assert again.preprocess == model.preprocess
    assert again.family == "vit"
    task = again.task()
    assert type(task) is type(model.task)
    assert task.output_names == (NUMBERS if kind == "numbers" else LABELS)
    assert task.state() == model.task.state()
    assert not hasattr(task, "backbone")


def test_calibration_travels_with_the_state():
    assert Card.of(trained()).state["temperature"]["temperature"] == 2.0
    assert Card.of(trained(kind="numbers")).state["margin"] == NUMBERS_STATE["margin"]


def test_licence_and_recipe_come_from_the_record():
    assert Card.of(trained()).licence == "not stated"
    card = Card.of(trained(record=True))
    assert (card.licence, card.recipe) == ("CC0-1.0", RECIPE)
    assert Card.of(trained(record=True), licence="MIT").licence == "MIT"
    assert Card.of(open_model("packaged")).licence == "Apache-2.0"


def test_a_task_without_answers_has_no_card():
    backbone, preprocess = tiny(num_classes=0), trained().preprocess
    model = TrainedModel(source="x", backbone=backbone, preprocess=preprocess, head=MAEConfig().build(backbone, {}))
    with pytest.raises(Unsupported, match="fine-tune"):
        Card.of(model)


def changed(**changes: object) -> str:
    return json.dumps(json.loads(Card.of(trained()).to_json()) | changes)


@pytest.mark.parametrize("text", ["", None, "{", "[]", changed(colour="blue"), changed(task={"kind": "sing"})])
def test_damaged_cards_are_refused_with_the_name_of_the_file(text):
    with pytest.raises(CheckpointError, match=r"odd\.onnx"):
        Card.from_json(text, name="odd.onnx")


def test_a_card_of_another_version_is_refused():
    with pytest.raises(CheckpointError, match="version"):
        Card.from_json(changed(version=VERSION + 1), name="odd.onnx")
    with pytest.raises(CheckpointError, match="version"):
        Card.from_json('{"labels": ["a"]}', name="odd.onnx")
