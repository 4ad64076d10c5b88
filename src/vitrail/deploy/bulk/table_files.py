"""The files that tables of predictions are stored in, Parquet, CSV or JSON lines; and the contract of other forms."""

import csv
import importlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.files import open_regular, write_atomically
from vitrail.safe_cells import plain_cell, safe_cell
from vitrail.strict_json import to_json
from vitrail.tasks.answer import Prediction

FORMATS = (".parquet", ".csv", ".jsonl")
Row = dict[str, Any]


class Form(ABC):
    """How the rows of predictions are stored once all of them are known; `reasons` is where errors can be read.

    `columns` are those of its rows, where they are not those of the task; `rows` is the file of the rows, where that is
    not the one that was named.
    """

    reasons: ClassVar[str] = "the column `error` says why"
    columns: tuple[str, ...] = ()
    rows: Path | None = None

    @abstractmethod
    def check(self, out: Path) -> None:
        """ConfigError for a path that cannot be written, before any work is done."""

    def row(self, prediction: Prediction, image: ImageFile, columns: Sequence[str]) -> Row:
        """The row of a prediction, still without the model."""
        return row_of(prediction, columns)

    @abstractmethod
    def begin(self, rows: Sequence[Row], new: Iterable[str]) -> None:
        """Takes in the rows that exist and the names of images that are to come; DataError where one has no place."""

    @abstractmethod
    def read(self, path: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
        """Columns and rows of a file that an earlier call wrote; DataError where it cannot be read."""

    @abstractmethod
    def write(self, rows: Sequence[Row], path: Path, columns: Sequence[str]) -> None:
        """All rows in one step: a reader sees the old file or the new one."""


class TableFile(Form):
    """One row for each image, in the format that the suffix names."""

    def check(self, out: Path) -> None:
        """ConfigError for a suffix without a format, or where Parquet is not installed."""
        if out.suffix not in FORMATS:
            raise ConfigError(f"{out} has no format of a table; {nearest(out.suffix, FORMATS)}")
        if out.suffix == ".parquet":
            _arrow()

    def begin(self, rows: Sequence[Row], new: Iterable[str]) -> None:
        """Any name has a place."""

    def read(self, path: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
        """Cells of CSV are texts, and are written again as such."""
        with open_regular(path) as file:
            try:
                if path.suffix == ".parquet":
                    table = _arrow().read_table(file)
                    return table.column_names, table.to_pylist()
                if path.suffix == ".jsonl":  # its lines end in \\n alone, unlike those of str.splitlines
                    return columns, [json.loads(line) for line in file]
                text = io.TextIOWrapper(file, newline="", encoding="utf-8", errors="surrogateescape")
                names, *rows = [[plain_cell(cell) for cell in row] for row in csv.reader(text, strict=True)] or [[]]
                return names, [dict(zip(names, (cell or None for cell in row), strict=True)) for row in rows]
            except (ValueError, RecursionError, csv.Error) as error:  # those of Arrow are ValueErrors
                raise DataError(f"{path} is not a readable table: {error}") from error

    def write(self, rows: Sequence[Row], path: Path, columns: Sequence[str]) -> None:
        """The whole table."""
        if path.suffix == ".jsonl":
            write_atomically(path, lambda new: write_lines(rows, new))
        elif path.suffix == ".parquet":
            arrow = importlib.import_module("pyarrow")
            flat = [_flat(row) for row in rows]
            kinds = [(name, arrow.float64() if _is_numeric(flat, name) else arrow.string()) for name in columns]
            table = arrow.Table.from_pylist(flat, schema=arrow.schema(kinds))
            write_atomically(path, lambda new: _arrow().write_table(table, new))
        else:
            write_atomically(path, lambda new: _write_csv(rows, new, columns))


class ParquetFile(TableFile):
    """A table of Parquet, whose texts are UTF-8."""

    def begin(self, rows: Sequence[Row], new: Iterable[str]) -> None:
        """DataError for a name that is not UTF-8, which would be refused at the end."""
        if (odd := next((name for name in new if not is_text(name)), None)) is not None:
            raise DataError(f"the name {odd!a} is not UTF-8, which Parquet needs; rename it, or write .csv or .jsonl")


def row_of(prediction: Prediction, columns: Sequence[str]) -> Row:
    """A prediction as a row, still without the model."""
    answer = {} if prediction.answer is None else prediction.answer.row()
    return {"path": prediction.path, **{name: answer.get(name) for name in columns}, "error": prediction.error}


def part_of(prediction: Prediction, kind: str) -> Prediction:
    """A prediction with the answer of a kind: its own, or one that it consists of."""
    if prediction.answer is None or prediction.answer.kind == kind:
        return prediction
    return prediction._replace(answer=next(one for one in prediction.answer.parts().values() if one.kind == kind))


def table_form(out: Path) -> Form:
    """The form of a table by the suffix of its file."""
    return ParquetFile() if out.suffix == ".parquet" else TableFile()


def write_lines(rows: Sequence[Row], path: Path) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(map(line, rows)), encoding="utf-8")


def line(row: Row) -> str:
    """A row as JSON that people can read; with escapes where a name is not UTF-8."""
    text = to_json(row)
    return (text if is_text(text) else to_json(row, ascii_only=True)) + "\n"


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold it: names of files may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write_csv(rows: Sequence[Row], path: Path, columns: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(map(safe_cell, columns))
        writer.writerows([safe_cell(row[name]) for name in columns] for row in map(_flat, rows))


def _flat(row: Row) -> Row:
    """Lists and mappings as JSON text, for formats whose cells are plain values."""
    return {name: to_json(value) if isinstance(value, list | dict) else value for name, value in row.items()}


def _is_numeric(rows: Sequence[Row], column: str) -> bool:
    """Whether a column has numbers alone, and at least one."""
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install pyarrow; or write .csv or .jsonl") from error
