"""One or more numbers per image: an age, a price, a position."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.data.targets.target import Audit, Change, Column, Read, Target
from vitrail.errors import listed
from vitrail.report import Table, Value

_STRATA = 10  # groups of equal size, from which a validation split takes its share; also the images that each needs
_FAR = 6.0  # interquartile ranges from which on a value is an outlier
_ROW_NUMBERS = ("", "id", "index", "row", "unnamed: 0")  # columns that number the rows, as pandas writes them
_LARGEST = torch.finfo(torch.float32).max
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")


@dataclass(frozen=True, kw_only=True)
class NumbersTarget(Target, kind="numbers"):
    """Numbers by name: values N K float32, NaN if unknown; `safe` lists augmentations that do not change them."""

    field: ClassVar[str] = "numbers"
    column_names: ClassVar[tuple[str, ...]] = ("value", "target", "number")
    stratum: ClassVar[str] = "range of values"
    names: tuple[str, ...]
    safe: tuple[Change, ...] = ()

    @property
    def number_names(self) -> tuple[str, ...]:
        """The names of the numbers."""
        return self.names

    @classmethod
    def recognise(cls, columns: Sequence[Column]) -> list[Column]:
        """A column named value, target or number; else all columns of numbers that are not only 0 and 1.

        Most cells must be numbers, not all: `read` reports the line of a wrong one, rather than skip the column.
        """
        if (column := cls.named_column(columns)) is not None:
            return [column]
        return [column for column in columns if column.name.lower() not in _ROW_NUMBERS and _numeric(column)]

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """Columns of finite numbers."""
        rows = [[_checked(column, row) for column in columns] for row in range(len(columns[0].cells))]
        target = cls(names=tuple(column.name for column in columns))
        return Read(target, torch.tensor(rows, dtype=torch.float32), (f"{target.describe()} each",))

    def describe(self) -> str:
        """The count and the names."""
        return f"{'1 number' if len(self.names) == 1 else f'{len(self.names)} numbers'} ({listed(self.names, 5)})"

    def strata(self, values: Tensor) -> list[int]:
        """Groups of equal size by the first number, from low to high: tenths, or fewer where images are few."""
        groups = min(_STRATA, max(len(values) // _STRATA, 1))
        rank = values[:, 0].argsort(stable=True).argsort(stable=True)
        return (rank * groups // max(len(values), 1)).tolist()

    def align(self, values: Tensor, to: Target, *, name: str) -> Tensor:
        """The same numbers in the order of another target, matched by name."""
        if isinstance(to, NumbersTarget) and set(to.names) <= set(self.names):
            return values[:, [self.names.index(one) for one in to.names]]
        return super().align(values, to, name=name)

    def refusal(self, parts: Mapping[str, tuple[str, Tensor]]) -> str | None:
        """A number that is the same for every training image."""
        name, values = parts["train"]
        values = values[self.known(values)]
        constant = (values == values[:1]).all(dim=0).tolist()
        if same := [one for one, is_same in zip(self.names, constant, strict=True) if is_same]:
            return f"{listed(map(repr, same))} of {name} is the same for every training image; choose another column"
        return None

    def keeps(self, change: Change) -> bool:
        """Only what was declared safe: a flip changes a heading, a crop changes a position."""
        return change in self.safe

    def unknown(self, like: Tensor) -> Tensor:
        """NaN for each number."""
        return torch.full_like(like[0], torch.nan)

    def known(self, values: Tensor) -> Tensor:
        """Images whose numbers are all known."""
        return ~values.isnan().any(dim=1)

    def mix(self, values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
        """Weighted means by share of the image: B K -> B K."""
        return torch.lerp(values[partner], values, share)

    def text(self, value: Tensor) -> str:
        """Names and numbers."""
        if bool(value.isnan().any()):
            return "not annotated"
        return ", ".join(f"{name} {number:.6g}" for name, number in zip(self.names, value.tolist(), strict=True))

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """The range of each number per split; outliers, and values outside of the training range."""
        rows: list[dict[str, Value]] = []
        advice: list[str] = []
        for index, name in enumerate(self.names):
            known = {split: values[self.known(values)] for split, values in parts.items()}
            columns = {split: values[:, index].double() for split, values in known.items() if len(values)}
            for split, column in columns.items():
                low, middle, high = column.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
                rows.append({
                    "number": name, "split": split, "images": len(column), "min": float(column.min()), "median": middle,
                    "max": float(column.max()), "mean": float(column.mean()),
                    "std": float(column.std(correction=0)),
                })  # fmt: skip
                reach = _FAR * (high - low)
                outliers = int(((column < low - reach) | (column > high + reach)).sum())
                if outliers and high > low:
                    advice.append(f"Outliers of {name} in {split}: {outliers:,}. Check these values.")
            advice += _outside_train(name, columns)
        header = ("number", "split", "images", "min", "median", "max", "mean", "std")
        return Audit((Table("Numbers", dict.fromkeys(header, ""), tuple(rows)),), advice)


def _outside_train(name: str, columns: Mapping[str, Tensor]) -> list[str]:
    """Advice on values outside of the range of the training images."""
    if (train := columns.get("train")) is None:
        return []
    counts = {split: int(((values < train.min()) | (values > train.max())).sum()) for split, values in columns.items()}
    return [
        f"Values of {name} in {split} outside of the training range: {count:,}. The model cannot learn these."
        for split, count in counts.items()
        if count
    ]


def _numeric(column: Column) -> bool:
    """Whether most cells are numbers, and not only 0 and 1."""
    numbers = [_number(cell) for cell in column.cells]
    commas = sum(_has_decimal_comma(cell) for cell in column.cells)
    finite = [number for number in numbers if number is not None]
    return 2 * (len(finite) + commas) > len(numbers) and (commas > 0 or any(one not in (0.0, 1.0) for one in finite))


def _has_decimal_comma(cell: Any) -> bool:
    return isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell) is not None


def _number(cell: Any) -> float | None:
    """A number that a float32 can hold, or None."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) <= _LARGEST else None


def _checked(column: Column, row: int) -> float:
    cell = column.cells[row]
    if (number := _number(cell)) is not None:
        return number
    if cell in (None, ""):
        problem = "the cell is empty; a number is expected"
    elif _has_decimal_comma(cell):
        problem = f"{cell!r} has a decimal comma; write {cell.replace(',', '.')}"
    else:
        problem = f"{cell!r} is not a finite number"
    raise column.error(row, f"{problem}; correct it, remove the line, or choose other columns with --label")
