"""The answer of a detector: boxes with classes and scores."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.data.targets.box_geometry import clip, map_boxes
from vitrail.data.targets.drawing import class_colour, draw_boxes
from vitrail.tasks.answer import Answer, Bar

COLUMNS = ("count", "label", "score", "boxes", "width", "height")
_SHOWN = 12  # boxes that a line of text names


class FoundBox(NamedTuple):
    """A box that was found: left, top, right and bottom in pixels, its class and score."""

    label: str
    number: int
    score: float
    corners: tuple[float, float, float, float]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        box = [round(value, 2) for value in self.corners]
        return {"label": self.label, "index": self.number, "score": round(self.score, 6), "box": box}


@dataclass(frozen=True)
class BoxesAnswer(Answer):
    """Boxes, that with the best score first, in pixels of the model's input, or of the picture once it is `placed`."""

    kind: ClassVar[str] = "boxes"
    has_position: ClassVar[bool] = True
    boxes: tuple[FoundBox, ...]
    size: tuple[int, int] | None = None  # height and width of the picture, once it is placed

    def placed(self, maps: Tensor, size: tuple[int, int]) -> "BoxesAnswer":
        """In pixels of the picture, of this height and width; a map 2 3 takes pixels of the input there."""
        corners = torch.tensor([box.corners for box in self.boxes], dtype=torch.float32).view(-1, 4)
        moved = clip(map_boxes(corners[None], maps[None].to(corners)), size)[0].tolist()
        boxes = tuple(box._replace(corners=tuple(to)) for box, to in zip(self.boxes, moved, strict=True))
        return replace(self, boxes=boxes, size=size)

    def shifted(self, right: float, down: float) -> "BoxesAnswer":
        """Boxes that lie so many pixels further right and down."""
        moved = []
        for box in self.boxes:
            x1, y1, x2, y2 = box.corners
            moved.append(box._replace(corners=(x1 + right, y1 + down, x2 + right, y2 + down)))
        return replace(self, boxes=tuple(moved))

    def to_json(self) -> dict[str, Any]:
        """The boxes."""
        return {"boxes": [box.to_json() for box in self.boxes]}

    def text(self) -> str:
        """How many of each class, and the best boxes."""
        if not self.boxes:
            return "no boxes"
        few = [f"{box.label} {100 * box.score:.0f} % at {_written(box)}" for box in self.boxes[:_SHOWN]]
        more = [f"and {len(self.boxes) - _SHOWN} more"] if len(self.boxes) > _SHOWN else []
        return f"{self.brief()}: " + ", ".join(few + more)

    def brief(self) -> str:
        """How many of each class."""
        counts = Counter(box.label for box in self.boxes)
        return ", ".join(f"{count} {label}" for label, count in sorted(counts.items())) or "no boxes"

    def row(self) -> dict[str, Any]:
        """The number of boxes, the best of them, all, and the size of the picture."""
        best = self.boxes[0] if self.boxes else None
        height, width = self.size or (None, None)
        rows = [[box.label, box.score, *box.corners] for box in self.boxes]
        return {
            "count": len(self.boxes),
            "label": None if best is None else best.label,
            "score": None if best is None else best.score,
            "boxes": rows,
            "width": width,
            "height": height,
        }

    def bars(self) -> list[Bar]:
        """A bar for each box, which has the name of the output that explains it."""
        bars = [
            Bar(
                f"box {index}",
                f"{box.label} {100 * box.score:.0f} %, {_written(box)}",
                box.score,
                chosen=True,
                colour=class_colour(box.number),
            )
            for index, box in enumerate(self.boxes)
        ]
        return bars or [Bar("no boxes", "nothing above the threshold")]

    def draw(self, image: Tensor) -> Tensor:
        """The image, uint8 C H W, with the outlines of the boxes and their numbers, as `explain --box` takes them."""
        if not self.boxes:
            return image
        corners = torch.tensor([box.corners for box in self.boxes])
        names = [f"{box.label} {100 * box.score:.0f} %" for box in self.boxes]
        return draw_boxes(image, corners, names, [class_colour(box.number) for box in self.boxes], numbered=True)


def _written(box: FoundBox) -> str:
    return " ".join(f"{value:.0f}" for value in box.corners)


SCHEMA = {
    "type": "object",
    "required": ["boxes"],
    "properties": {
        "boxes": {
            "type": "array",
            "description": "objects, that with the best score first",
            "items": {
                "type": "object",
                "required": ["label", "index", "score", "box"],
                "properties": {
                    "label": {"type": "string"},
                    "index": {"type": "integer"},
                    "score": {"type": "number", "minimum": 0, "maximum": 1},
                    "box": {
                        "type": "array",
                        "description": "left, top, right, bottom in pixels of the picture",
                        "items": {"type": "number"},
                    },
                },
            },
        }
    },
}
