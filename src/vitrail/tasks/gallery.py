"""Examples as galleries of a report: the image, what the model said of it, and the truth."""

from collections.abc import Sequence

from vitrail.report import Gallery, Line, Shot
from vitrail.report.images import data_uri
from vitrail.report.sections import Tone
from vitrail.tasks.answer import Example


def caption(example: Example) -> tuple[Line, ...]:
    """What the model said, the truth where that differs, and the name; the name alone where there is no answer."""
    if example.answer is None:
        return (Line(example.name, "soft"),)
    right = example.error == 0
    tone: Tone = "good" if right or not example.answer.decides else "bad"
    truth = () if right else (Line(f"truth: {example.truth}"),)
    return Line(example.answer.brief(), tone), *truth, Line(example.name, "soft")


def example_gallery(title: str, text: str, examples: Sequence[Example]) -> Gallery:
    """Examples in the order in which they come; answers that can be drawn are drawn on the image."""
    shots = []
    for example in examples:
        drawn = example.answer.draw(example.image)
        image = example.image if drawn is None else drawn
        alt = f"{example.name}: {example.answer.brief()}, truth {example.truth}"
        shots.append(Shot((data_uri(image),), caption(example), alt))
    return Gallery(title, text, tuple(shots))
