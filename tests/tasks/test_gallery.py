"""Examples in a report: what was said, what is true, and the answer drawn where it can be."""

import torch

from vitrail.report import Line
from vitrail.report.images import data_uri
from vitrail.tasks.answer import Answer, Bar, Example
from vitrail.tasks.gallery import brief, caption, example_gallery


class Said(Answer):
    """An answer of given bars."""

    def __init__(self, *bars: Bar, kind: str = "classes", drawn=None) -> None:
        self._bars, self.kind, self._drawn = list(bars), kind, drawn

    def to_json(self):
        return {}

    def text(self):
        return ""

    def row(self):
        return {}

    def bars(self):
        return self._bars

    def draw(self, image):
        return self._drawn


IMAGE = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
DOG = Said(Bar("dog", "97 %", 0.97, chosen=True), Bar("cat", "3 %", 0.03))


def test_an_answer_in_a_few_words():
    assert brief(DOG) == "dog 97 %"
    assert brief(Said(Bar("dog", "3 %"))) == "none"
    assert brief(Said(Bar("age", "50.1"), Bar("height", "180"), kind="numbers")) == "age 50.1, height 180"


def test_captions_say_what_is_wrong():
    assert caption(Example(IMAGE, "a.png", "cat", DOG, 0.97)) == (
        Line("dog 97 %", "bad"),
        Line("truth: cat"),
        Line("a.png", "soft"),
    )
    assert caption(Example(IMAGE, "a.png", "dog", DOG, 0.0)) == (Line("dog 97 %", "good"), Line("a.png", "soft"))
    number = Said(Bar("age", "50.1"), kind="numbers")
    assert caption(Example(IMAGE, "a.png", "61", number, 2.0))[:2] == (Line("age 50.1", "good"), Line("truth: 61"))


def test_an_image_without_an_answer_has_its_name():
    assert caption(Example(IMAGE, "a.png", "", None, 0.1)) == (Line("a.png", "soft"),)


def test_answers_are_drawn_on_the_image():
    drawn = 255 - IMAGE
    examples = [Example(IMAGE, "a.png", "cat", DOG, 0.97), Example(IMAGE, "b.png", "cat", Said(drawn=drawn), 0.5)]
    gallery = example_gallery("Worst mistakes", "text", examples)
    assert [shot.images for shot in gallery.shots] == [(data_uri(IMAGE),), (data_uri(drawn),)]
    assert "a.png" in gallery.shots[0].alt
