"""Any number of boxes per image, each with a class: detection."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.data.natural import natural
from vitrail.data.targets.box_geometry import area, clip, inside, invert, map_boxes, trim
from vitrail.data.targets.class_counts import audit_classes, lost_classes
from vitrail.data.targets.class_names import notes_on_similar, unknown_classes_error
from vitrail.data.targets.drawing import class_colour, draw_boxes
from vitrail.data.targets.target import Audit, Column, Read, Target
from vitrail.errors import DataError
from vitrail.report import Table, Value

BOX, CLASS, IGNORE, AREA, WIDTH = slice(0, 4), 4, 5, 6, 7  # of the last axis
NONE, UNKNOWN = -1.0, -2.0  # in place of a class: padding; an image that was not annotated
MIN_VISIBLE = 0.25  # the share of a box that must be visible, or it is left out
_PASTED = 0.5  # the share of objects that copy-paste takes from an image
_SMALL, _LARGE = 32**2, 96**2  # areas in pixels, as COCO counts them


class Box(NamedTuple):
    """One object: x1 y1 x2 y2 in pixels, its class, whether it is ignored, and its area where that is known."""

    corners: tuple[float, float, float, float]
    label: str
    ignore: bool = False
    area: float | None = None


@dataclass(frozen=True, kw_only=True)
class BoxesTarget(Target, kind="boxes"):
    """Boxes with classes: values N M 7 float32, padded to M = `most` boxes, the most of any image.

    x1 y1 x2 y2 in pixels of the image, the class number (-1 for padding, -2 for all if the image was not annotated),
    1 for a box to ignore (a crowd, or too difficult), the area in pixels of the original image.
    """

    field: ClassVar[str] = "boxes"
    column_names: ClassVar[tuple[str, ...]] = ("boxes", "bboxes", "bbox")
    stratum: ClassVar[str] = "rarest class"
    missing_cells: ClassVar[tuple[Any, ...]] = (None, "?")  # an empty cell says that there is no box
    classes: tuple[str, ...]
    most: int = 1

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """Cells such as "10 20 50 80 red cell; 4 4 9 9 platelet": x1 y1 x2 y2 and the class; "" for no box."""
        (column,) = columns
        rows = [_parsed(column, row, cell) for row, cell in enumerate(column.cells)]
        target, values = cls.of(rows)
        total = sum(map(len, rows))
        return Read(
            target, values, (f"{len(target.classes)} class{'es' * (len(target.classes) != 1)}, {total:,} boxes",)
        )

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[Box] | None], classes: Sequence[str] | None = None
    ) -> tuple["BoxesTarget", Tensor]:
        """The target and values of the boxes of each image; None for an image that was not annotated."""
        known = {box.label for boxes in rows for box in boxes or ()}
        names = tuple(classes if classes is not None else sorted(known, key=natural))
        number = {name: index for index, name in enumerate(names)}
        most = max([len(boxes or ()) for boxes in rows], default=0) or 1
        values = torch.zeros(len(rows), most, WIDTH)
        values[:, :, CLASS] = NONE
        for at, boxes in enumerate(rows):
            if boxes is None:
                values[at, :, CLASS] = UNKNOWN
            elif boxes:
                values[at, : len(boxes)] = torch.tensor([_row(box, number[box.label]) for box in boxes])
        return cls(classes=names, most=most), values

    @staticmethod
    def valid(values: Tensor) -> Tensor:
        """Which rows are boxes to learn and to find: B M 7 -> B M."""
        return (values[..., CLASS] >= 0) & (values[..., IGNORE] == 0)

    @staticmethod
    def known(values: Tensor) -> Tensor:
        """Which images were annotated: B M 7 -> B."""
        return values[:, 0, CLASS] > UNKNOWN

    def describe(self) -> str:
        """The number of classes."""
        return f"boxes of {len(self.classes)} classes" if len(self.classes) != 1 else "boxes of 1 class"

    def strata(self, values: Tensor) -> list[int]:
        """The class in each image that the fewest images have; the number of classes for an image without boxes."""
        present = self.present(values)  # N K
        count = present.sum(0)
        rank = torch.where(present, count, len(values) + 1)
        none = len(self.classes)
        return [int(at) if has else none for at, has in zip(rank.argmin(1), present.any(1).tolist(), strict=True)]

    def present(self, values: Tensor) -> Tensor:
        """Whether an image has a box of a class: N M 7 -> N K bool."""
        found = torch.zeros(len(values), len(self.classes) + 1)
        number = torch.where(self.valid(values), values[..., CLASS], float(len(self.classes))).long()
        return found.scatter_(1, number, 1.0)[:, :-1] > 0

    def counts(self, values: Tensor) -> list[int]:
        """The number of boxes per class."""
        found = Counter(values[..., CLASS][self.valid(values)].long().tolist())
        return [found[index] for index in range(len(self.classes))]

    def align(self, values: Tensor, to: Target, *, name: str) -> Tensor:
        """Class numbers of another target, matched by name, and padded to its number of boxes."""
        if not isinstance(to, BoxesTarget):
            return super().align(values, to, name=name)
        aligned = values.clone()
        if to.classes != self.classes:
            if (problem := unknown_classes_error(name, self.classes, to.classes)) is not None:
                raise DataError(problem)
            number = torch.tensor([to.classes.index(label) for label in self.classes], dtype=torch.float32)
            old = values[..., CLASS]
            aligned[..., CLASS] = torch.where(old >= 0, number[old.long().clamp(min=0)], old)
        if (more := to.most - values.shape[1]) <= 0:
            return aligned
        padding = torch.zeros(len(values), more, WIDTH)
        padding[..., CLASS] = torch.where(self.known(values), NONE, UNKNOWN)[:, None]
        return torch.cat([aligned, padding], dim=1)

    def joined(self, other: Target) -> Target:
        """With room for the boxes of both."""
        return replace(self, most=max(self.most, other.most)) if isinstance(other, BoxesTarget) else self

    def refusal(self, parts: Mapping[str, tuple[str, Tensor]]) -> str | None:
        """No box to learn from, or none to validate with."""
        for split in ("train", "val"):
            name, values = parts[split]
            if not bool(self.valid(values).any()):
                return f"no image in the {split} split of {name} has a box; a detector needs some: add annotations"
        return None

    def lost(self, before: Tensor, after: Tensor) -> tuple[str, ...]:
        """Classes whose images are all broken."""
        return lost_classes(self.classes, self.counts(before), self.counts(after))

    def notes(self) -> Any:
        """Class names that may mean the same."""
        yield from notes_on_similar(self.classes)

    def unknown(self, like: Tensor) -> Tensor:
        """No box, and a mark that the image was not annotated."""
        value = torch.zeros_like(like[0])
        value[:, CLASS] = UNKNOWN
        return value

    def move(self, values: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The hulls of the moved boxes, cut off at the edges; a box that is hardly visible is left out."""
        moved = map_boxes(values[..., BOX], invert(maps))
        clipped = clip(moved, size)
        return _kept(values, clipped, area(clipped) / area(moved).clamp(min=1e-9))

    def paste(self, values: Tensor, other: Tensor, region: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Boxes of both images, shrunk to what is visible of them: B M 7, B P 7 -> B M+P 7."""
        seen = ((values, ~(region if hidden is None else hidden)), (other, region))
        return torch.cat([_kept(one, *trim(one[..., BOX], visible)) for one, visible in seen], dim=1)

    def objects(self, values: Tensor, draws: Tensor, size: tuple[int, int]) -> Tensor | None:
        """About half of the boxes of each image."""
        drawn = draws.repeat(1, -(-values.shape[1] // draws.shape[1]))[:, : values.shape[1]]  # B M
        chosen = self.valid(values) & (drawn < _PASTED)
        return inside(values[..., BOX], chosen, size)

    def text(self, value: Tensor) -> str:
        """The number of boxes of each class."""
        if not bool(self.known(value[None])):
            return "not annotated"
        counts = zip(self.counts(value[None]), self.classes, strict=True)
        return ", ".join(f"{count} {name}" for count, name in counts if count) or "no boxes"

    def draw(self, image: Tensor, value: Tensor) -> Tensor:
        """Outlines with class names; boxes to ignore in grey."""
        rows = value[value[:, CLASS] >= 0]
        numbers, ignored = rows[:, CLASS].long().tolist(), (rows[:, IGNORE] > 0).tolist()
        names = [self.classes[number] for number in numbers]
        colours = [(150, 150, 150) if skip else class_colour(one) for one, skip in zip(numbers, ignored, strict=True)]
        return draw_boxes(image, rows[:, BOX], names, colours)

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """Images and boxes per class and split, and the sizes of boxes."""
        images = {split: self.present(values).sum(0).int().tolist() for split, values in parts.items()}
        audit = audit_classes(self.classes, images, one=False)
        rows: list[dict[str, Value]] = []
        for split, values in parts.items():
            areas, many = values[..., AREA][self.valid(values)], self.valid(values).sum(1)
            rows.append({
                "split": split, "boxes": len(areas), "to ignore": int((values[..., IGNORE] > 0).sum()),
                "images without": int((many == 0).sum()), "most in an image": int(many.max()) if len(many) else 0,
                "small": int((areas < _SMALL).sum()), "large": int((areas >= _LARGE).sum()),
            })  # fmt: skip
        names = ("split", "boxes", "to ignore", "images without", "most in an image", "small", "large")
        table = Table("Boxes", dict.fromkeys(names, ""), tuple(rows))
        images_table = Table("Images per class", *(getattr(audit.sections[0], name) for name in ("columns", "rows")))
        return Audit((images_table, self._per_class(parts), table), audit.advice)

    def misfit(self, value: Tensor, size: tuple[int, int]) -> str | None:
        """A box that reaches outside of the image as it was decoded, which its annotation may tell otherwise."""
        corners = value[value[:, CLASS] >= 0, BOX]
        if not len(corners) or not bool((corners[:, 2:].amax(0) > torch.tensor([size[1], size[0]]) + 1).any()):
            return None
        right, bottom = corners[:, 2:].amax(0).tolist()
        return f"its boxes reach to {right:g} x {bottom:g}, the image has {size[1]} x {size[0]} pixels"

    def _per_class(self, parts: Mapping[str, Tensor]) -> Table:
        counts = {split: self.counts(values) for split, values in parts.items()}
        rows: list[dict[str, Value]] = [
            {"class": name, **{split: numbers[at] for split, numbers in counts.items()}}
            for at, name in enumerate(self.classes)
        ]
        return Table("Boxes per class", {"class": "", **dict.fromkeys(counts, "")}, tuple(rows))


def _kept(values: Tensor, boxes: Tensor, share: Tensor) -> Tensor:
    """Values with these boxes B M 4; padding where less than a share B M of a box is visible."""
    ignored = values[..., IGNORE] > 0  # as long as any part is visible, it must be ignored there
    gone = (values[..., CLASS] >= 0) & ((area(boxes) <= 0) | ((share < MIN_VISIBLE) & ~ignored) | (share <= 0))
    real = (values[..., CLASS] >= 0) & ~gone
    kept = torch.cat([torch.where(real[..., None], boxes, 0.0), values[..., CLASS:]], dim=2)
    padding = torch.zeros_like(kept[..., CLASS:])
    padding[..., 0] = NONE
    rest = torch.where(gone[..., None], padding, kept[..., CLASS:])
    return torch.cat([kept[..., BOX], rest], dim=2)


def _row(box: Box, number: int) -> list[float]:
    x1, y1, x2, y2 = box.corners
    size = (x2 - x1) * (y2 - y1) if box.area is None else box.area
    return [x1, y1, x2, y2, float(number), float(box.ignore), size]


def _parsed(column: Column, row: int, cell: Any) -> list[Box]:
    if not isinstance(cell, str):
        raise column.error(row, f"{cell!r} is not a list of boxes; write x1 y1 x2 y2 class, several joined by ;")
    return [_box(column, row, part.split(maxsplit=4)) for part in cell.split(";") if part.strip()]


def _box(column: Column, row: int, words: list[str]) -> Box:
    try:
        x1, y1, x2, y2 = (float(word) for word in words[:4])
    except ValueError:
        raise column.error(row, f"{' '.join(words)!r} is not a box; expected x1 y1 x2 y2 class") from None
    if len(words) < 5:
        raise column.error(row, f"the box {' '.join(words)!r} has no class; expected x1 y1 x2 y2 class")
    if not all(map(math.isfinite, (x1, y1, x2, y2))) or x2 <= x1 or y2 <= y1:
        raise column.error(row, f"the box {' '.join(words)!r} has no area; expected x1 < x2 and y1 < y2, in pixels")
    return Box((x1, y1, x2, y2), words[4].strip())
