"""Answers and predictions as plain data."""

import torch

from vitrail.tasks.answer import Answer, Bar, Prediction


class Yes(Answer):
    """The shortest answer there is."""

    kind = "yes"

    def to_json(self):
        return {"yes": True}

    def text(self):
        return "yes"

    def row(self):
        return {"yes": True}

    def bars(self):
        return [Bar("yes", "certainly", 1.0, chosen=True)]


def test_a_prediction_has_an_answer_or_a_reason():
    assert Prediction("a.png", Yes()).to_dict() == {"path": "a.png", "yes": True, "error": None}
    assert Prediction("a.png", error="broken").to_dict() == {"path": "a.png", "error": "broken"}


def test_nothing_is_drawn_by_default():
    assert Yes().draw(torch.zeros(3, 4, 4, dtype=torch.uint8)) is None
