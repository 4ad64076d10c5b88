"""Examples in a report: what was said, what is true, and the answer drawn where it can be."""

import torch

from vitrail.report import Line
from vitrail.report.images import data_uri
from vitrail.tasks.answer import Answer, Bar, Example
from vitrail.tasks.classify.class_answer import ClassAnswer
from vitrail.tasks.gallery import caption, example_gallery


class Said(Answer):
    """An answer of given bars."""

    def __init__(self, words: str = "", *, decides: bool = True, drawn=None) -> None:
        self._words, self.decides, self._drawn = words, decides, drawn

    def to_json(self):
        return {}

    def text(self):
        return self._words

    def row(self):
        return {}

    def bars(self):
        return [Bar(self._words, "")]

    def draw(self, image):
        return self._drawn


IMAGE = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
DOG = Said("dog 97 %")


def test_a_caption_is_the_text_of_the_answer_or_its_short_form():
    assert DOG.brief() == "dog 97 %"
    answer = ClassAnswer.of(["cat", "dog"], [0.03, 0.97], [False, True], top=2)
    assert answer.brief() == "dog 97.0 %"
    assert ClassAnswer.of(["cat", "dog"], [0.03, 0.2], [False, False], top=2, exclusive=False).brief() == "none"


def test_captions_say_what_is_wrong():
    assert caption(Example(IMAGE, "a.png", "cat", DOG, 0.97)) == (
        Line("dog 97 %", "bad"),
        Line("truth: cat"),
        Line("a.png", "soft"),
    )
    assert caption(Example(IMAGE, "a.png", "dog", DOG, 0.0)) == (Line("dog 97 %", "good"), Line("a.png", "soft"))
    number = Said("age 50.1", decides=False)
    assert caption(Example(IMAGE, "a.png", "61", number, 2.0))[:2] == (Line("age 50.1", "good"), Line("truth: 61"))


def test_an_image_without_an_answer_has_its_name():
    assert caption(Example(IMAGE, "a.png", "", None, 0.1)) == (Line("a.png", "soft"),)


def test_answers_are_drawn_on_the_image():
    drawn = 255 - IMAGE
    examples = [Example(IMAGE, "a.png", "cat", DOG, 0.97), Example(IMAGE, "b.png", "cat", Said(drawn=drawn), 0.5)]
    gallery = example_gallery("Worst mistakes", "text", examples)
    assert [shot.images for shot in gallery.shots] == [(data_uri(IMAGE),), (data_uri(drawn),)]
    assert "a.png" in gallery.shots[0].alt
