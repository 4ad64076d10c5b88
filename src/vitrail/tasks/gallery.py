"""Examples as galleries of a report: the image, what the model said of it, and the truth."""

from collections.abc import Sequence

from vitrail.report import Gallery, Line, Shot
from vitrail.report.images import data_uri
from vitrail.report.sections import Tone
from vitrail.tasks.answer import Answer, Example


def brief(answer: Answer) -> str:
    """The answer in a few words: all numbers, or the labels that were chosen, "none" where none was."""
    bars = answer.bars()
    shown = bars if answer.kind == "numbers" else [bar for bar in bars if bar.chosen]
    return ", ".join(f"{bar.label} {bar.text}" for bar in shown) or "none"


def caption(example: Example) -> tuple[Line, ...]:
    """What the model said, the truth where that differs, and the name; the name alone where there is no answer."""
    if example.answer is None:
        return (Line(example.name, "soft"),)
    right = example.error == 0
    tone: Tone = "good" if right or example.answer.kind == "numbers" else "bad"
    truth = () if right else (Line(f"truth: {example.truth}"),)
    return Line(brief(example.answer), tone), *truth, Line(example.name, "soft")


def example_gallery(title: str, text: str, examples: Sequence[Example]) -> Gallery:
    """Examples in the order in which they come; answers that can be drawn are drawn on the image."""
    shots = []
    for example in examples:
        drawn = example.answer.draw(example.image)
        image = example.image if drawn is None else drawn
        alt = f"{example.name}: {brief(example.answer)}, truth {example.truth}"
        shots.append(Shot((data_uri(image),), caption(example), alt))
    return Gallery(title, text, tuple(shots))
