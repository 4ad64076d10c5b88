"""The answers of many tasks to one image."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from vitrail.tasks.answer import Answer, Bar
from vitrail.tasks.many.many_names import joined

_LAYERS = ("depth", "mask")  # kinds of answer that tint the picture: below all others


@dataclass(frozen=True)
class ManyAnswer(Answer):
    """An answer of each task, by its name."""

    kind: ClassVar[str] = "many"
    has_position: ClassVar[bool] = True
    answers: Mapping[str, Answer]

    def parts(self) -> Mapping[str, Answer]:
        """The answer of each task."""
        return self.answers

    def placed(self, maps: Tensor, size: tuple[int, int]) -> "ManyAnswer":
        """All of them for a picture of this height and width."""
        return replace(self, answers={name: answer.placed(maps, size) for name, answer in self.answers.items()})

    def to_json(self) -> dict[str, Any]:
        """An entry for each task."""
        return {name: answer.to_json() for name, answer in self.answers.items()}

    def text(self) -> str:
        """The line of each task."""
        return "; ".join(f"{name}: {answer.text()}" for name, answer in self.answers.items())

    def brief(self) -> str:
        """The same without candidates that were not chosen."""
        return "; ".join(f"{name}: {answer.brief()}" for name, answer in self.answers.items())

    def row(self) -> dict[str, Any]:
        """The columns of all tasks."""
        return joined({name: answer.row() for name, answer in self.answers.items()})

    def bars(self) -> list[Bar]:
        """The bars of all tasks; a label is the name of the output that explains it, where there is one."""
        pairs = self.answers.items()
        return [bar._replace(label=f"{name}:{bar.label}") for name, answer in pairs for bar in answer.bars()]

    def draw(self, image: Tensor) -> Tensor | None:
        """The image, uint8 C H W, with the answers in layers: depth below masks, boxes above; None without any."""
        return self._layers(image, named=False)

    def draw_named(self, image: Tensor) -> Tensor | None:
        """The same with the names of classes."""
        return self._layers(image, named=True)

    def _layers(self, image: Tensor, *, named: bool) -> Tensor | None:
        drawn: Tensor | None = None
        for answer in sorted(self.answers.values(), key=_height):
            base = image if drawn is None else drawn
            layer = answer.draw_named(base) if named else answer.draw(base)
            drawn = drawn if layer is None else layer
        return drawn


def _height(answer: Answer) -> int:
    """Where the layer of an answer lies, from below."""
    return _LAYERS.index(answer.kind) if answer.kind in _LAYERS else len(_LAYERS)
