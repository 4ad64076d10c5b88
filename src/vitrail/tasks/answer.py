"""The answer of a task for one image: for a terminal, JSON, a table, a page and a picture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from vitrail.data.preprocess import Preprocess


class Bar(NamedTuple):
    """One line of an answer on a page; `share` is the length of its bar, 0 to 1, None for no bar."""

    label: str
    text: str
    share: float | None = None
    chosen: bool = False
    low: float | None = None  # the ends of an interval, as shares like `share`
    high: float | None = None
    colour: tuple[int, int, int] | None = None  # red green blue of what is drawn of it


class AnswerFile(NamedTuple):
    """An answer as a file of its own, and the texts of files that one folder of such needs, by their names."""

    suffix: str
    data: bytes
    beside: Mapping[str, str]


class Answer(ABC):
    """The answer of a task for one image."""

    kind: ClassVar[str]
    has_position: ClassVar[bool] = False  # whether it says where things are: boxes, masks, depth
    decides: ClassVar[bool] = False  # whether an answer is right or wrong, and not only more or less close

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data, as `Task.answer_schema` describes it."""

    @abstractmethod
    def text(self) -> str:
        """One line for a terminal."""

    def brief(self) -> str:
        """The answer alone, without candidates that were not chosen: for a caption."""
        return self.text()

    @abstractmethod
    def row(self) -> dict[str, Any]:
        """The row of a table, by the names of `Task.columns`."""

    @abstractmethod
    def bars(self) -> list[Bar]:
        """The lines of a page, the most important first."""

    def placed(self, maps: Tensor, size: tuple[int, int]) -> "Answer":
        """The answer for a picture of this height and width; `maps` 2 3 takes pixels of the model's input there."""
        return self

    def draw(self, image: Tensor) -> Tensor | None:
        """The image, uint8 C H W, with the answer drawn on it; None where it has no position in the image."""
        return None

    def draw_named(self, image: Tensor) -> Tensor | None:
        """The same for a file that is seen alone: with the names of what colours stand for."""
        return self.draw(image)

    def parts(self) -> Mapping[str, "Answer"]:
        """The answers that it consists of, by name; none for the answer of one task."""
        return {}

    def to_file(self) -> AnswerFile | None:
        """The answer as a file that can be learned from, where it has a value for each pixel; else None."""
        return None


class Prediction(NamedTuple):
    """The answer for one image, or the reason why there is none."""

    path: str
    answer: Answer | None = None
    error: str | None = None

    def __repr__(self) -> str:
        return f"Prediction({self.path}: {self.error if self.answer is None else self.answer.text()})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"path": self.path, **({} if self.answer is None else self.answer.to_json()), "error": self.error}


class Example(NamedTuple):
    """An image that was evaluated: what is true of it, what was said, and how wrong that is (0: right)."""

    image: Tensor  # uint8 C H W
    name: str
    truth: str
    answer: Answer
    error: float
    targets: Mapping[str, Tensor] = MappingProxyType({})  # the truth as batches hold it, by field


class Examples(NamedTuple):
    """Images for a report: those that are most wrong, the first ones, and what makes a model's input of them."""

    worst: Sequence[Example] = ()
    first: Sequence[Example] = ()
    preprocess: Preprocess | None = None


NO_EXAMPLES = Examples()
