"""Predictions for very many images, into one table or file; rows that are there are not made again.

Each row goes at once into a journal beside the table (`predictions.csv.partial`); when all are there, the table is
written in one step and the journal is removed. After a kill, the same command reads the journal, drops a line that was
cut, and goes on: every image has exactly one row. Each row names the model that made it, and a table has one model.
One process writes a table at a time; another is refused while it lives.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.deploy.artefact.fingerprint import same_model
from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.table_files import Form, Row, line, table_form, write_lines
from vitrail.errors import ConfigError, DataError
from vitrail.files import open_regular, write_atomically
from vitrail.locks import locked

_BEGIN = b'{"path": "'  # of every line of a journal


class Bulk(NamedTuple):
    """How many rows the table has, how many of them are new, and how many images could not be read."""

    rows: int
    fresh: int
    broken: int


def table_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table for the columns of a task."""
    names = ("path", *columns, "error", "model")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"the table would have two columns called {twice[0]!r}; rename that output of the task")
    return names


def bulk(
    images: Iterable[ImageFile], out: Path, predict: Callable[[Sequence[ImageFile]], Iterator[Row]], *,
    columns: Sequence[str], model: str, form: Form | None = None,
) -> Bulk:  # fmt: skip
    """Writes rows for all images that the table does not have yet.

    `predict` gives the rows of `Form.row`, `columns` are those of the task, `model` is the model's fingerprint, `form`
    how rows are stored: by default as the suffix says.
    """
    form = form or table_form(out)
    form.check(out)
    names = table_columns(columns)
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.lock"), what=str(out)):
        return _fill(images, out, predict, names, model, form)


def _fill(  # noqa: PLR0917  (all of one table)
    images: Iterable[ImageFile], out: Path, predict: Callable[[Sequence[ImageFile]], Iterator[Row]],
    columns: Sequence[str], model: str, form: Form,
) -> Bulk:  # fmt: skip
    journal = out.with_name(f"{out.name}.partial")
    rows = _begun(out, journal, columns, model, form)
    done = {row["path"] for row in rows}
    left = list({image.name: image for image in images if image.name not in done}.values())
    form.begin(rows, [model, *(image.name for image in left)])
    with journal.open("a", encoding="utf-8") as file:
        for row in predict(left):
            rows.append({**row, "model": model})
            file.write(line(rows[-1]))
            file.flush()
        os.fsync(file.fileno())
    form.write(rows, out, columns)
    journal.unlink()
    return Bulk(len(rows), len(left), sum(row["error"] is not None for row in rows))


def _begun(out: Path, journal: Path, columns: Sequence[str], model: str, form: Form) -> list[Row]:
    """The rows that exist already, all of them in the journal; DataError for files that are not of this table."""
    begun = journal if journal.exists() else out
    if not begun.exists() or (begun.is_file() and begun.stat().st_size == 0):
        return []
    try:
        found, rows = _read_journal(journal, columns) if begun == journal else form.read(out, columns)
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
        write_atomically(journal, lambda new: write_lines(rows, new))
    return rows


def _is_row(row: Any, columns: Sequence[str]) -> bool:
    """Whether it has the columns of the table, and names an image and a model."""
    if not isinstance(row, dict) or row.keys() != set(columns):
        return False
    return isinstance(row["path"], str) and isinstance(row["model"], str | None)


def _read_journal(journal: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
    """Columns and complete rows; the rest of the file is cut off, so that the next row begins a line."""
    whole, rows = 0, []
    with open_regular(journal) as file:
        for text in file:
            if not whole and not (text.startswith(_BEGIN) or _BEGIN.startswith(text)):
                return (), []  # something else of that name
            try:
                row = json.loads(text) if text.endswith(b"\n") else None
            except (ValueError, RecursionError):
                row = None
            if row is None:
                break
            whole += len(text)
            rows.append(row)
    os.truncate(journal, whole)
    return columns, rows
