"""Predictions for very many files, into one table: Parquet, CSV or JSON lines; what is done is not done again.

Each answer goes at once into a journal beside the table (`predictions.csv.partial`); when all are there, the table is
written in one step and the journal goes away. After a kill the same command takes up the journal, drops a line that was
cut, and goes on: every file has exactly one row.
"""

import csv
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.deploy.pictures import Picture
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.tasks.predict import Prediction

COLUMNS = ("path", "label", "probability", "answers", "error")
FORMATS = (".parquet", ".csv", ".jsonl")


class Bulk(NamedTuple):
    """How many rows the table has, how many of them are new, and how many files could not be read."""

    rows: int
    fresh: int
    broken: int


def bulk(pictures: Iterable[Picture], out: Path, answer: Callable[[Sequence[Picture]], Iterator[Prediction]]) -> Bulk:
    """Answers for all pictures that the table does not hold yet, each under its name."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out} has no format that is known; {nearest(out.suffix, FORMATS)}")
    if out.suffix == ".parquet":
        _arrow()  # a missing library is told before hours of work
    journal = out.with_name(f"{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists() and not journal.exists():
        _write_lines(_read_table(out), journal)
    rows = list(_read_journal(journal))
    done = {row["path"] for row in rows}
    left = [picture for picture in dict.fromkeys(pictures) if picture.name not in done]
    with journal.open("a", encoding="utf-8") as file:
        for result in answer(left):
            rows.append(_row(result))
            file.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
            file.flush()
        os.fsync(file.fileno())
    _write_table(rows, out)
    journal.unlink()
    return Bulk(len(rows), len(left), sum(row["error"] is not None for row in rows))


def _row(result: Prediction) -> dict[str, Any]:
    """One line of the table; the likeliest class stands on its own, all of them as JSON."""
    first = result.answers[0] if result.answers else None
    answers = [[answer.label, answer.probability] for answer in result.answers]
    return {
        "path": result.path,
        "label": first.label if first else None,
        "probability": first.probability if first else None,
        "answers": json.dumps(answers, ensure_ascii=False),
        "error": result.error,
    }


def _read_journal(journal: Path) -> Iterator[dict[str, Any]]:
    """The rows that are whole; what follows the last of them is cut off, so that the next begins a line."""
    if not journal.exists():
        return
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


def _read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table that an earlier call wrote."""
    try:
        if path.suffix == ".parquet":
            rows: list[dict[str, Any]] = _arrow().read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        else:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [_typed(row) for row in csv.DictReader(file)]
    except (ValueError, KeyError, csv.Error) as error:
        raise DataError(f"{path} is no table of predictions: {error}") from error
    if any(row.keys() != set(COLUMNS) for row in rows):
        raise DataError(f"{path} is no table of predictions: its columns are not {', '.join(COLUMNS)}")
    return rows


def _typed(row: dict[str, str]) -> dict[str, Any]:
    """A row of CSV, where nothing is the empty text."""
    plain: dict[str, Any] = {name: value or None for name, value in row.items()}
    return plain | {"probability": float(row["probability"]) if row["probability"] else None}


def _write_lines(rows: Sequence[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _write_table(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The whole table in one step: a reader sees the old one or the new one."""
    made = out.with_name(f".{out.name}.new")
    if out.suffix == ".parquet":
        arrow = importlib.import_module("pyarrow")
        kinds = {name: arrow.float64() if name == "probability" else arrow.string() for name in COLUMNS}
        _arrow().write_table(arrow.Table.from_pylist(list(rows), schema=arrow.schema(list(kinds.items()))), made)
    elif out.suffix == ".jsonl":
        _write_lines(rows, made)
    else:
        with made.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    made.replace(out)


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install 'vitrail[parquet]'; or write .csv or .jsonl") from error
