"""Predictions for very many images, into one table: Parquet, CSV or JSON lines; rows that are there are not made again.

Each row goes at once into a journal beside the table (`predictions.csv.partial`); when all are there, the table is
written in one step and the journal is removed. After a kill, the same command reads the journal, drops a line that was
cut, and goes on: every image has exactly one row. Each row names the model that made it, and a table has one model.
One process writes a table at a time; another is refused while it lives.
"""

import csv
import importlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.deploy.artefact.fingerprint import same_model
from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.safe_cells import plain_cell, safe_cell
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.files import open_regular, write_atomically
from vitrail.locks import locked
from vitrail.strict_json import to_json
from vitrail.tasks.answer import Prediction

FORMATS = (".parquet", ".csv", ".jsonl")
Row = dict[str, Any]
_BEGIN = b'{"path": "'  # of every line of a journal


class Bulk(NamedTuple):
    """How many rows the table has, how many of them are new, and how many images could not be read."""

    rows: int
    fresh: int
    broken: int


def check_table(out: Path) -> None:
    """ConfigError for a format that cannot be written, before any work is done."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out} has no format of a table; {nearest(out.suffix, FORMATS)}")
    if out.suffix == ".parquet":
        _arrow()


def table_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table for the columns of a task."""
    names = ("path", *columns, "error", "model")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"the table would have two columns called {twice[0]!r}; rename that output of the task")
    return names


def row_of(prediction: Prediction, columns: Sequence[str]) -> Row:
    """A prediction as a row, still without the model."""
    answer = {} if prediction.answer is None else prediction.answer.row()
    return {"path": prediction.path, **{name: answer.get(name) for name in columns}, "error": prediction.error}


def bulk(
    images: Iterable[ImageFile], out: Path, predict: Callable[[Sequence[ImageFile]], Iterator[Row]], *,
    columns: Sequence[str], model: str,
) -> Bulk:  # fmt: skip
    """Writes rows for all images that the table does not have yet.

    `predict` gives the rows of `row_of`, `columns` are those of the task, `model` is the model's fingerprint.
    """
    check_table(out)
    names = table_columns(columns)
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.lock"), what=str(out)):
        return _fill(images, out, predict, names, model)


def _fill(
    images: Iterable[ImageFile], out: Path, predict: Callable[[Sequence[ImageFile]], Iterator[Row]],
    columns: Sequence[str], model: str,
) -> Bulk:  # fmt: skip
    journal = out.with_name(f"{out.name}.partial")
    rows = _begun(out, journal, columns, model)
    done = {row["path"] for row in rows}
    left = list({image.name: image for image in images if image.name not in done}.values())
    if out.suffix == ".parquet":
        _refuse_bytes([model, *(image.name for image in left)])
    with journal.open("a", encoding="utf-8") as file:
        for row in predict(left):
            rows.append({**row, "model": model})
            file.write(_line(rows[-1]))
            file.flush()
        os.fsync(file.fileno())
    _write_table(rows, out, columns)
    journal.unlink()
    return Bulk(len(rows), len(left), sum(row["error"] is not None for row in rows))


def _begun(out: Path, journal: Path, columns: Sequence[str], model: str) -> list[Row]:
    """The rows that exist already, all of them in the journal; DataError for files that are not of this table."""
    begun = journal if journal.exists() else out
    if not begun.exists() or (begun.is_file() and begun.stat().st_size == 0):
        return []
    try:
        found, rows = _read_journal(journal, columns) if begun == journal else _read_table(out, columns)
    except OSError as error:
        raise DataError(f"{begun} cannot be read: {error.strerror or error}; name another table") from error
    if set(found) != set(columns) or not all(_is_row(row, columns) for row in rows):
        raise DataError(
            f"{begun} is not a table of such predictions: its columns are not {', '.join(columns)}; name another file"
        )
    if (other := next((row["model"] for row in rows if not same_model(row["model"], model)), None)) is not None:
        raise DataError(
            f"{begun} was written by the model {other}, and this is {model}; name another table, or remove that one"
        )
    if begun == out:
        write_atomically(journal, lambda new: _write_lines(rows, new))
    return rows


def _is_row(row: Any, columns: Sequence[str]) -> bool:
    """Whether it has the columns of the table, and names an image and a model."""
    if not isinstance(row, dict) or row.keys() != set(columns):
        return False
    return isinstance(row["path"], str) and isinstance(row["model"], str | None)


def _refuse_bytes(names: Iterable[str]) -> None:
    """DataError for a name that is not UTF-8, which Parquet would refuse at the end."""
    if (odd := next((name for name in names if not _is_text(name)), None)) is not None:
        raise DataError(f"the name {odd!a} is not UTF-8, which Parquet needs; rename it, or write .csv or .jsonl")


def _read_journal(journal: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
    """Columns and complete rows; the rest of the file is cut off, so that the next row begins a line."""
    whole, rows = 0, []
    with open_regular(journal) as file:
        for line in file:
            if not whole and not (line.startswith(_BEGIN) or _BEGIN.startswith(line)):
                return (), []  # something else of that name
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                row = None
            if row is None:
                break
            whole += len(line)
            rows.append(row)
    os.truncate(journal, whole)
    return columns, rows


def _read_table(path: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
    """Columns and rows of a table that an earlier call wrote; cells of CSV are texts, and are written again as such."""
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
            raise DataError(f"{path} is not a table that can be read: {error}") from error


def _write_lines(rows: Sequence[Row], path: Path) -> None:
    path.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: Row) -> str:
    """A row as JSON that people can read; with escapes where a name is not UTF-8."""
    text = to_json(row)
    return (text if _is_text(text) else to_json(row, ascii_only=True)) + "\n"


def _is_text(name: str) -> bool:
    """Whether UTF-8 can hold it: names of files may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write_table(rows: Sequence[Row], out: Path, columns: Sequence[str]) -> None:
    """The whole table in one step: a reader sees the old one or the new one."""
    if out.suffix == ".jsonl":
        write_atomically(out, lambda new: _write_lines(rows, new))
    elif out.suffix == ".parquet":
        arrow = importlib.import_module("pyarrow")
        flat = [_flat(row) for row in rows]
        kinds = [(name, arrow.float64() if _is_numeric(flat, name) else arrow.string()) for name in columns]
        table = arrow.Table.from_pylist(flat, schema=arrow.schema(kinds))
        write_atomically(out, lambda new: _arrow().write_table(table, new))
    else:
        write_atomically(out, lambda new: _write_csv(rows, new, columns))


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
