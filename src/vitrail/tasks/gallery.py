"""Examples as galleries of a report: the image, what the model said of it, and the truth."""

from collections.abc import Callable, Sequence

from torch import Tensor

from vitrail.report import Gallery, Line, Shot
from vitrail.report.images import data_uri
from vitrail.report.sections import Tone
from vitrail.tasks.answer import Example

_DRAWN = 12  # examples with several pictures
_LARGEST = 320  # pixels of the longer side of such a picture


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
        shots.append(Shot((data_uri(image),), caption(example), _alt(example)))
    return Gallery(title, text, tuple(shots))


def drawn_gallery(
    title: str,
    text: str,
    examples: Sequence[Example],
    draw: Callable[[Example], Sequence[Tensor] | None],
    describe: Callable[[Example], str],
) -> Gallery:
    """Some examples with several pictures each, such as the truth, the answer and the error, and a line that says it.

    Examples of which there is nothing to draw, None, are left out.
    """
    shots = []
    for example in examples[:_DRAWN]:
        if (pictures := draw(example)) is not None:
            images = tuple(data_uri(picture, largest=_LARGEST) for picture in pictures)
            shots.append(Shot(images, (Line(describe(example), "bad"), Line(example.name, "soft")), _alt(example)))
    return Gallery(title, text, tuple(shots), large=True)


def _alt(example: Example) -> str:
    return f"{example.name}: {example.answer.brief()}, truth {example.truth}"
