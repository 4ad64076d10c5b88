"""One class per image."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.data.natural import natural
from vitrail.data.targets.class_cells import LIST, cell_text, one_hot_columns, one_hot_marks
from vitrail.data.targets.class_counts import audit_classes, gap, lost_classes
from vitrail.data.targets.class_names import composed, notes_on_similar, unknown_classes_error
from vitrail.data.targets.joined import joined_by, with_marks
from vitrail.data.targets.target import Audit, Column, Read, Target
from vitrail.errors import DataError, listed

UNKNOWN = -1  # in place of a class: an image that was not annotated
_WHOLE = 0.999  # of the shares of a mixed image, which may be rounded


@dataclass(frozen=True, kw_only=True)
class ClassTarget(Target, kind="class"):
    """One of several classes: values N int64, -1 if unknown; after mixing, B K float32 that sum to 1."""

    field: ClassVar[str] = "label"
    vague: ClassVar[int] = 2
    column_names: ClassVar[tuple[str, ...]] = ("label", "class", "category")
    stratum: ClassVar[str] = "class"
    classes: tuple[str, ...]

    @classmethod
    def recognise(cls, columns: Sequence[Column]) -> list[Column]:
        """A column named label, class or category; or columns of 0 and 1 with a single 1 in each row."""
        if (column := cls.named_column(columns)) is not None:
            return [column]
        binary = one_hot_columns(columns)
        return binary if binary and bool((one_hot_marks(binary).sum(dim=1) == 1).all()) else []

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """One column of names, or one column of 0 and 1 per class."""
        if len(columns) > 1:
            target = cls(classes=tuple(column.name for column in columns))
            note = f"one label each, from {len(columns)} columns of 0 and 1"
            return Read(target, _one_hot_classes(columns), (note,))
        (column,) = columns
        names = [_name(column, row, cell) for row, cell in enumerate(column.cells)]
        target, values = cls.of(names)
        _refuse_joined(column)
        return Read(target, values, (f"one label each, of {len(target.classes)} classes", *_remarks(target.classes)))

    @classmethod
    def of(cls, names: Sequence[str]) -> tuple["ClassTarget", Tensor]:
        """The target and values of a list of names, one per sample."""
        classes = tuple(sorted(set(names), key=natural))
        position = {name: index for index, name in enumerate(classes)}
        return cls(classes=classes), torch.tensor([position[name] for name in names], dtype=torch.int64)

    def describe(self) -> str:
        """The number of classes."""
        return f"{len(self.classes)} classes" if len(self.classes) != 1 else "1 class"

    def strata(self, values: Tensor) -> list[int]:
        """The class numbers."""
        return [int(value) for value in values.tolist()]

    def align(self, values: Tensor, to: Target, *, name: str) -> Tensor:
        """Class numbers of another target, matched by name; one-hot if that is multi-label."""
        if to == self:
            return values
        known = getattr(to, "classes", None)
        if known is None:
            return super().align(values, to, name=name)
        if (problem := unknown_classes_error(name, self.classes, known)) is not None:
            raise DataError(problem)
        number = torch.tensor([*(known.index(label) for label in self.classes), UNKNOWN])  # the last is that of -1
        moved = number[values]
        if isinstance(to, ClassTarget):
            return moved
        return ClassTarget(classes=known).shares(moved).where(self.known(values)[:, None], torch.nan)

    def joined(self, other: Target) -> Target:
        """Multi-label if one of the splits is."""
        return type(other)(classes=self.classes) if other.kind == "labels" else self  # type: ignore[call-arg]

    def refusal(self, parts: Mapping[str, tuple[str, Tensor]]) -> str | None:
        """Only one class, or a class without an image in a split."""
        if len(self.classes) < 2:
            return (
                f"{parts['train'][0]} has only one class, {self.classes[0]!r}; a classifier needs at least two: add "
                "images of another class"
            )
        counted = {split: self.counts(values) for split, (_, values) in parts.items()}
        for split, (name, _) in parts.items():
            if empty := [label for label, count in zip(self.classes, counted[split], strict=True) if not count]:
                return gap(self.classes, split, name, empty, in_train=counted["train"])
        return None

    def counts(self, values: Tensor) -> list[int]:
        """The number of images per class."""
        counted = Counter(values.tolist())
        return [counted[index] for index in range(len(self.classes))]

    def lost(self, before: Tensor, after: Tensor) -> tuple[str, ...]:
        """Classes whose images are all broken."""
        return lost_classes(self.classes, self.counts(before), self.counts(after))

    def notes(self) -> Iterator[str]:
        """Class names that may mean the same."""
        yield from notes_on_similar(self.classes)

    def unknown(self, like: Tensor) -> Tensor:
        """No class."""
        return torch.full_like(like[0], UNKNOWN)

    def known(self, values: Tensor) -> Tensor:
        """Images with a class; of mixed images, those all of whose parts have one."""
        return values.sum(dim=1) > _WHOLE if self.soft(values) else values > UNKNOWN

    def soft(self, values: Tensor) -> bool:
        """Whether values are shares of classes, as after mixing, rather than class numbers."""
        return values.is_floating_point()

    def shares(self, values: Tensor) -> Tensor:
        """B int64 or B K -> B K float32."""
        if self.soft(values):
            return values.float()
        zeros = torch.zeros(len(values), len(self.classes) + 1, device=values.device)
        column = torch.where(values < 0, len(self.classes), values)[:, None]
        return zeros.scatter_(1, column, 1.0)[:, :-1]  # not one_hot, which reads values and cannot be recorded

    def mix(self, values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
        """Class shares by share of the image: B or B K -> B K."""
        shares = self.shares(values)
        return torch.lerp(shares[partner], shares, share)

    def text(self, value: Tensor) -> str:
        """The class name."""
        return "not annotated" if int(value) == UNKNOWN else self.classes[int(value)]

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """Images per class and split; classes that are uneven, rare or missing."""
        return audit_classes(self.classes, {split: self.counts(values) for split, values in parts.items()}, one=True)

    def groups(self, values: Tensor) -> list[str | None]:
        """The class names."""
        return [None if value == UNKNOWN else self.classes[value] for value in values.tolist()]


def _name(column: Column, row: int, cell: Any) -> str:
    if isinstance(cell, list) or (isinstance(cell, str) and LIST.fullmatch(cell)):
        raise column.error(row, f"expected one class, not a list ({cell}); put several labels into a column `labels`")
    return cell_text(column, row, cell)


def _one_hot_classes(columns: Sequence[Column]) -> Tensor:
    """Class numbers N from one column of 0 and 1 per class; DataError for a row without exactly one 1."""
    marks = one_hot_marks(columns)  # N K
    for row, total in enumerate(marks.sum(dim=1).tolist()):
        if total != 1:
            raise columns[0].error(row, f"{total:g} of {len(columns)} columns are 1; one class needs exactly one")
    return marks.argmax(dim=1)


def _refuse_joined(column: Column) -> None:
    """DataError if a cell holds several labels that would become one class."""
    cells = [str(cell) for cell in column.cells]
    if (joined := joined_by(cells, several=False)) is None:
        return
    name, separator = joined
    row = next(row for row, cell in enumerate(cells) if name in cell)
    raise column.error(
        row,
        f"expected one class, but {name!r} looks like several; for several labels per image, name the column `labels` "
        f"and join them by | (if it is one class, rename it without {separator})",
    )


def _remarks(classes: Sequence[str]) -> Iterator[str]:
    """Remarks that the user should check."""
    if marked := with_marks(classes, several=False):
        yield f"These names contain a separator and each count as one class: {listed(map(repr, marked))}."
    if made := composed(classes):
        yield (
            f"These names each count as one class, although their words are classes too: {listed(map(repr, made))}; "
            "for several labels per image, join them by | in a column `labels`."
        )
