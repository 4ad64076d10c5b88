"""Multi-label: any number of labels per image."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.data.natural import natural
from vitrail.data.targets.class_cells import LIST, cell_text, one_hot_columns, one_hot_marks
from vitrail.data.targets.class_counts import audit_classes, gap, lost_classes
from vitrail.data.targets.class_names import composed, notes_on_similar, unknown_classes_error
from vitrail.data.targets.joined import joined_by, split_labels, with_marks
from vitrail.data.targets.target import Audit, Column, Read, Target
from vitrail.errors import DataError, listed


@dataclass(frozen=True, kw_only=True)
class LabelsTarget(Target, kind="labels"):
    """Any number of classes: values N K float32, 0 or 1, NaN if unknown; after mixing, anything in between."""

    field: ClassVar[str] = "labels"
    vague: ClassVar[int] = 3
    column_names: ClassVar[tuple[str, ...]] = ("labels", "classes", "tags")
    stratum: ClassVar[str] = "class"
    missing_cells: ClassVar[tuple[Any, ...]] = ("?",)  # an empty cell says that there is no label
    classes: tuple[str, ...]

    @classmethod
    def recognise(cls, columns: Sequence[Column]) -> list[Column]:
        """A column named labels, classes or tags; or columns of 0 and 1."""
        column = cls.named_column(columns)
        return [column] if column is not None else one_hot_columns(columns)

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """One column of lists or of names joined by |, or one column of 0 and 1 per label."""
        if len(columns) > 1 or (cls.named_column(columns) is None and one_hot_columns(columns)):
            target = cls(classes=tuple(column.name for column in columns))
            source = f"{len(columns)} columns" if len(columns) > 1 else "1 column"
            return Read(target, one_hot_marks(columns), (f"several labels each, from {source} of 0 and 1",))
        (column,) = columns
        names = [_names(column, row, cell) for row, cell in enumerate(column.cells)]
        target, values = cls.of(names)
        _refuse_joined(column)
        remarks = _remarks(target.classes, values, column.name)
        return Read(target, values, (f"several labels each, of {len(target.classes)} classes", *remarks))

    @classmethod
    def of(cls, names: Sequence[Sequence[str]]) -> tuple["LabelsTarget", Tensor]:
        """The target and values of lists of names, one list per sample."""
        classes = tuple(sorted({name for some in names for name in some}, key=natural))
        position = {name: index for index, name in enumerate(classes)}
        marks = torch.zeros(len(names), len(classes))
        for row, some in enumerate(names):
            marks[row, [position[name] for name in some]] = 1.0
        return cls(classes=classes), marks

    def describe(self) -> str:
        """The number of labels."""
        return f"{len(self.classes)} labels (multi-label)"

    def strata(self, values: Tensor) -> list[int]:
        """The rarest label of each sample; -1 if it has none."""
        rarity = values.sum(dim=0)  # K
        of_own = torch.where(values > 0, rarity, torch.inf)  # N K
        return torch.where(values.any(dim=1), of_own.argmin(dim=1), -1).tolist()

    def align(self, values: Tensor, to: Target, *, name: str) -> Tensor:
        """The same labels in the order of another target, matched by name."""
        if to == self:
            return values
        if not isinstance(to, LabelsTarget):
            raise DataError(f"{name} has several labels per image; the training data has {to.describe()}")
        if (problem := unknown_classes_error(name, self.classes, to.classes)) is not None:
            raise DataError(problem)
        marks = torch.zeros(len(values), len(to.classes))
        marks[:, torch.tensor([to.classes.index(label) for label in self.classes])] = values
        return marks

    def refusal(self, parts: Mapping[str, tuple[str, Tensor]]) -> str | None:
        """A label without a training image; one without a validation image can be learned, but not evaluated."""
        name, values = parts["train"]
        counted = self.counts(values)
        empty = [label for label, count in zip(self.classes, counted, strict=True) if not count]
        return gap(self.classes, "train", name, empty, in_train=counted) if empty else None

    def counts(self, values: Tensor) -> list[int]:
        """The number of images per label."""
        return [int(count) for count in values.nansum(dim=0).tolist()]

    def lost(self, before: Tensor, after: Tensor) -> tuple[str, ...]:
        """Labels whose images are all broken."""
        return lost_classes(self.classes, self.counts(before), self.counts(after))

    def notes(self) -> Iterator[str]:
        """Names of labels that may mean the same."""
        yield from notes_on_similar(self.classes)

    def unknown(self, like: Tensor) -> Tensor:
        """NaN for each label."""
        return torch.full_like(like[0], torch.nan)

    def known(self, values: Tensor) -> Tensor:
        """Images whose labels are numbers."""
        return ~values.isnan().any(dim=1)

    def mix(self, values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
        """Each label by its share of the image."""
        return torch.lerp(values[partner].float(), values.float(), share)

    def text(self, value: Tensor) -> str:
        """The names, separated by commas."""
        if bool(value.isnan().any()):
            return "not annotated"
        return ", ".join(self.classes[index] for index in value.nonzero()[:, 0].tolist()) or "none"

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """Images per label and split; labels that are uneven, rare or missing."""
        return audit_classes(self.classes, {split: self.counts(values) for split, values in parts.items()}, one=False)

    def groups(self, values: Tensor) -> list[str | None]:
        """The label of images that have exactly one."""
        single = values.sum(dim=1) == 1
        return [
            self.classes[index] if alone else None
            for index, alone in zip(values.argmax(dim=1).tolist(), single.tolist(), strict=True)
        ]


def _names(column: Column, row: int, cell: Any) -> list[str]:
    if cell is None:
        return []
    if isinstance(cell, str) and LIST.fullmatch(cell):
        raise column.error(
            row, f"{cell} is a list written as text; join names by | (an empty cell means none), or use a .jsonl file"
        )
    if isinstance(cell, str):
        return split_labels(cell)
    if not isinstance(cell, list):
        raise column.error(row, f"{cell!r} is not a list of labels; write a list, or names joined by |")
    return [cell_text(column, row, item) for item in cell]


def _refuse_joined(column: Column) -> None:
    """DataError if labels are joined by something other than |."""
    cells = [(row, str(cell)) for row, cell in enumerate(column.cells) if not isinstance(cell, list | None)]
    if (joined := joined_by([cell for _, cell in cells], several=True)) is None:
        return
    name, separator = joined
    row = next(row for row, cell in cells if name in cell)
    mark = "spaces" if separator == " " else separator
    raise column.error(
        row,
        f"{name!r} would be one class, because labels are joined by |: replace {mark} by | (if it is one class, write "
        "lists of labels in a .jsonl file)",
    )


def _remarks(classes: Sequence[str], values: Tensor, column: str) -> Iterator[str]:
    """Remarks that the user should check."""
    if marked := with_marks(classes, several=True):
        yield f"These names contain a separator and each count as one class: {listed(map(repr, marked))}."
    if made := composed(classes):
        yield f"These names each count as one class, although their words are classes too: {listed(map(repr, made))}."
    if bool((values.sum(dim=1) == 1).all()):
        yield f"Every image has exactly one label in the column {column}; if that is intended, name the column `label`."
