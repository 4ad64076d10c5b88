"""The answer of a classifier: classes by probability."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from vitrail.data.targets.joined import SEPARATOR
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.tasks.answer import Answer, Bar
from vitrail.tasks.task import require_finite

COLUMNS = ("label", "probability", "chosen", "answers")


class Candidate(NamedTuple):
    """A class, its number, its probability, and whether the model decides for it."""

    label: str
    number: int
    probability: float
    chosen: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        probability = round(self.probability, 6)
        return {"label": self.label, "index": self.number, "probability": probability, "chosen": self.chosen}


@dataclass(frozen=True)
class ClassAnswer(Answer):
    """The likeliest classes, the likeliest first; one that a goal decided for comes before likelier ones."""

    kind: ClassVar[str] = "classes"
    decides: ClassVar[bool] = True
    candidates: tuple[Candidate, ...]
    exclusive: bool = True  # whether an image has one class, so that the first candidate is the answer

    @classmethod
    def of(
        cls,
        classes: Sequence[str],
        probabilities: Sequence[float],
        chosen: Sequence[bool],
        *,
        top: int,
        exclusive: bool = True,
    ) -> "ClassAnswer":
        """The `top` likeliest classes, and all others that the model decides for; of one class, that one first."""
        order = sorted(range(len(probabilities)), key=lambda label: -probabilities[label])
        if exclusive and not chosen[order[0]]:
            order.sort(key=lambda label: not chosen[label])
        named = [*order[:top], *(label for label in order[top:] if chosen[label])]
        candidates = (Candidate(classes[index], index, probabilities[index], chosen[index]) for index in named)
        return cls(tuple(candidates), exclusive)

    def to_json(self) -> dict[str, Any]:
        """The candidates."""
        return {"answers": [one.to_json() for one in self.candidates]}

    def text(self) -> str:
        """The chosen classes and their probabilities, then the others."""
        if self.exclusive:
            return _listed(self.candidates)
        chosen = _listed([one for one in self.candidates if one.chosen])
        others = _listed([one for one in self.candidates if not one.chosen])
        return (chosen or "no label") + (f"; not {others}" if others else "")

    def brief(self) -> str:
        """The chosen classes."""
        return _listed([one for one in self.candidates if one.chosen]) or "none"

    def row(self) -> dict[str, Any]:
        """The likeliest class, those chosen joined by |, and all candidates."""
        first = self.candidates[0]
        return {
            "label": first.label,
            "probability": first.probability,
            "chosen": SEPARATOR.join(one.label for one in self.candidates if one.chosen) or None,
            "answers": [[one.label, one.probability] for one in self.candidates],
        }

    def bars(self) -> list[Bar]:
        """A bar for each candidate."""
        return [
            Bar(one.label, f"{100 * one.probability:.1f} %", one.probability, chosen=one.chosen)
            for one in self.candidates
        ]


def _listed(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{one.label} {100 * one.probability:.1f} %" for one in candidates)


SCHEMA = {
    "type": "object",
    "required": ["answers"],
    "properties": {
        "answers": {
            "type": "array",
            "description": "classes, the likeliest first; a chosen one before likelier ones",
            "items": {
                "type": "object",
                "required": ["label", "index", "probability", "chosen"],
                "properties": {
                    "label": {"type": "string"},
                    "index": {"type": "integer"},
                    "probability": {"type": "number", "minimum": 0, "maximum": 1},
                    "chosen": {"type": "boolean", "description": "whether the model decides for it"},
                },
            },
        }
    },
}


def check_head(backbone: Backbone, classes: Sequence[str]) -> None:
    """ConfigError where a model has another number of outputs than there are classes."""
    if backbone.config.num_classes != len(classes):
        raise ConfigError(
            f"the model has a head for {backbone.config.num_classes} classes, the data have {len(classes)}; replace it "
            f"with model.reset_head({len(classes)})"
        )


def check_finite(probabilities: Tensor, top: int) -> None:
    """Refuses numbers that are not finite, and fewer than one candidate."""
    if top < 1:
        raise ConfigError(f"top is {top}; it must be 1 or more")
    require_finite(probabilities)
