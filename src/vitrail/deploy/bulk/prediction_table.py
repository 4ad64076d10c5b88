"""Predictions for very many images, into one table: Parquet, CSV or JSON lines; rows that are there are not made again.

Each row goes at once into a journal beside the table (`predictions.csv.partial`); when all are there, the table is
written in one step and the journal is removed. After a kill, the same command reads the journal, drops a line that was
cut, and goes on: every image has exactly one row. Each row names the model that made it, and a table has one model.
"""

import csv
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.deploy.artefact.fingerprint import same_model
from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.tasks.answer import Prediction

FORMATS = (".parquet", ".csv", ".jsonl")
Row = dict[str, Any]


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
    journal = out.with_name(f"{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = _begun(out, journal, names, model)
    done = {row["path"] for row in rows}
    left = [image for image in dict.fromkeys(images) if image.name not in done]
    if out.suffix == ".parquet":
        _refuse_bytes([model, *(image.name for image in left)])
    with journal.open("a", encoding="utf-8") as file:
        for row in predict(left):
            rows.append({**row, "model": model})
            file.write(_line(rows[-1]))
            file.flush()
        os.fsync(file.fileno())
    _write_table(rows, out, names)
    journal.unlink()
    return Bulk(len(rows), len(left), sum(row["error"] is not None for row in rows))


def _begun(out: Path, journal: Path, columns: Sequence[str], model: str) -> list[Row]:
    """The rows that exist already, all of them in the journal; DataError where another model wrote them."""
    begun = journal if journal.exists() else out
    if not begun.exists():
        return []
    rows: list[Any] = list(_read_journal(journal)) if begun == journal else _read_table(out)
    if any(not isinstance(row, dict) or row.keys() != set(columns) for row in rows):
        raise DataError(
            f"{begun} is not a table of such predictions: its columns are not {', '.join(columns)}; name another file"
        )
    if (other := next((row["model"] for row in rows if not same_model(row["model"], model)), None)) is not None:
        raise DataError(
            f"{begun} was written by the model {other}, and this is {model}; name another table, or remove that one"
        )
    if begun == out:
        made = _beside(out)
        _write_lines(rows, made)
        made.replace(journal)
    return rows


def _refuse_bytes(names: Iterable[str]) -> None:
    """DataError for a name that is not UTF-8, which Parquet would refuse at the end."""
    if (odd := next((name for name in names if not _is_text(name)), None)) is not None:
        raise DataError(f"the name {odd!a} is not UTF-8, which Parquet needs; rename it, or write .csv or .jsonl")


def _read_journal(journal: Path) -> Iterator[Any]:
    """The complete rows; the rest of the file is cut off, so that the next row begins a line."""
    whole = 0
    with journal.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                row = None
            if row is None:
                break
            whole += len(line)
            yield row
    os.truncate(journal, whole)


def _read_table(path: Path) -> list[Any]:
    """The rows of a table that an earlier call wrote; those of CSV are texts, and are written again as such."""
    try:
        if path.suffix == ".parquet":
            rows: list[Row] = _arrow().read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:  # its lines end in \\n alone, unlike those of str.splitlines
                rows = [json.loads(line) for line in file]
        else:
            with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                rows = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
    except (ValueError, csv.Error) as error:  # those of Arrow are ValueErrors
        raise DataError(f"{path} is not a table that can be read: {error}") from error
    return rows


def _write_lines(rows: Sequence[Row], path: Path) -> None:
    path.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: Row) -> str:
    """A row as JSON that people can read; with escapes where a name is not UTF-8."""
    text = json.dumps(row, ensure_ascii=False)
    return (text if _is_text(text) else json.dumps(row)) + "\n"


def _is_text(name: str) -> bool:
    """Whether UTF-8 can hold it: names of files may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write_table(rows: Sequence[Row], out: Path, columns: Sequence[str]) -> None:
    """The whole table in one step: a reader sees the old one or the new one."""
    made = _beside(out)
    if out.suffix == ".jsonl":
        _write_lines(rows, made)
    elif out.suffix == ".parquet":
        arrow = importlib.import_module("pyarrow")
        flat = [_flat(row) for row in rows]
        kinds = [(name, arrow.float64() if _is_numeric(flat, name) else arrow.string()) for name in columns]
        _arrow().write_table(arrow.Table.from_pylist(flat, schema=arrow.schema(kinds)), made)
    else:
        with made.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(map(_flat, rows))
    made.replace(out)


def _flat(row: Row) -> Row:
    """Lists and mappings as JSON text, for formats whose cells are plain values."""
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for name, value in row.items()
    }


def _is_numeric(rows: Sequence[Row], column: str) -> bool:
    """Whether a column has numbers alone, and at least one."""
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _beside(out: Path) -> Path:
    """The path of a file that is renamed when it is complete."""
    return out.with_name(f".{out.name}.new")


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install pyarrow; or write .csv or .jsonl") from error
