import json

import pytest
from shipped import LABELS, opened

from vitrail.deploy.card import Card
from vitrail.errors import CheckpointError


def test_card_says_what_a_user_needs_and_survives_json():
    card = Card.of(opened(), licence="CC0-1.0", recipe={"epochs": 3})
    assert card.labels == LABELS
    assert card.family == "vit"
    assert (card.mean, card.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    assert Card.from_json(card.to_json(), name="x") == card
    assert Card.of(opened()).licence == "not stated"


def test_thresholds_go_with_several_labels():
    assert Card.of(opened(multi_label=True)).thresholds == pytest.approx((0.2, 0.4, 0.5, 0.6, 0.8))
    assert Card.of(opened()).thresholds is None


@pytest.mark.parametrize("text", ["", None, "{", "[]", json.dumps({"colour": "blue"})])
def test_what_is_no_card_is_told_with_the_file(text):
    with pytest.raises(CheckpointError, match=r"odd\.onnx"):
        Card.from_json(text, name="odd.onnx")
