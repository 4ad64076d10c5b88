"""Predictions for very many files, into one table: Parquet, CSV or JSON lines; what is done is not done again.

Each answer goes at once into a journal beside the table (`predictions.csv.partial`); when all are there, the table is
written in one step and the journal goes away. After a kill the same command takes up the journal, drops a line that was
cut, and goes on: every file has exactly one row. Each row says which model wrote it, and a table has one alone.
"""

import csv
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.joined import SEPARATOR
from vitrail.deploy.identity import same_model
from vitrail.deploy.pictures import Picture
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.tasks.predict import Prediction

COLUMNS = ("path", "label", "probability", "chosen", "answers", "error", "model")
FORMATS = (".parquet", ".csv", ".jsonl")


class Bulk(NamedTuple):
    """How many rows the table has, how many of them are new, and how many files could not be read."""

    rows: int
    fresh: int
    broken: int


def check_table(out: Path) -> None:
    """Refuses a table of a format that cannot be written, before any work is done for it."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out} does not end as a table does; {nearest(out.suffix, FORMATS)}")
    if out.suffix == ".parquet":
        _arrow()


def bulk(
    pictures: Iterable[Picture], out: Path, answer: Callable[[Sequence[Picture]], Iterator[Prediction]], *, model: str
) -> Bulk:
    """Answers for all pictures that the table does not hold yet, each under its name; `model` is whose they are."""
    check_table(out)
    journal = out.with_name(f"{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = _begun(out, journal, model)
    done = {row["path"] for row in rows}
    left = [picture for picture in dict.fromkeys(pictures) if picture.name not in done]
    if out.suffix == ".parquet":
        _refuse_bytes([model, *(picture.name for picture in left)])
    with journal.open("a", encoding="utf-8") as file:
        for result in answer(left):
            rows.append(_row(result, model))
            file.write(_line(rows[-1]))
            file.flush()
        os.fsync(file.fileno())
    _write_table(rows, out)
    journal.unlink()
    return Bulk(len(rows), len(left), sum(row["error"] is not None for row in rows))


def _begun(out: Path, journal: Path, model: str) -> list[dict[str, Any]]:
    """The rows that are there already, all of them in the journal; DataError where another model wrote them."""
    begun = journal if journal.exists() else out
    if not begun.exists():
        return []
    rows: list[Any] = list(_read_journal(journal)) if begun == journal else _read_table(out)
    if any(not isinstance(row, dict) or row.keys() != set(COLUMNS) for row in rows):
        raise DataError(
            f"{begun} is no table of predictions that can go on: its columns are not {', '.join(COLUMNS)}; name another"
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
    """DataError for a name that is no text, since Parquet would refuse it when all is done."""
    if (odd := next((name for name in names if not _is_text(name)), None)) is not None:
        raise DataError(f"the name {odd!a} is no UTF-8, which Parquet asks for; rename it, or write .csv or .jsonl")


def _row(result: Prediction, model: str) -> dict[str, Any]:
    """One line of the table: the likeliest class, those that were decided for joined by |, and all of them as JSON."""
    first = result.answers[0] if result.answers else None
    answers = [[answer.label, answer.probability] for answer in result.answers]
    return {
        "path": result.path,
        "label": first.label if first else None,
        "probability": first.probability if first else None,
        "chosen": SEPARATOR.join(answer.label for answer in result.answers if answer.chosen) or None,
        "answers": json.dumps(answers, ensure_ascii=False),
        "error": result.error,
        "model": model,
    }


def _read_journal(journal: Path) -> Iterator[Any]:
    """The rows that are whole; what follows the last of them is cut off, so that the next begins a line."""
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
    """The rows of a table that an earlier call wrote."""
    try:
        if path.suffix == ".parquet":
            rows: list[dict[str, Any]] = _arrow().read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:  # its lines end in \\n alone, unlike those of str.splitlines
                rows = [json.loads(line) for line in file]
        else:
            with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
                rows = [_typed(row) for row in csv.DictReader(file)]
    except (ValueError, csv.Error) as error:  # those of Arrow are ValueErrors
        raise DataError(f"{path} is no table of predictions that can be read: {error}") from error
    return rows


def _typed(row: dict[str, str]) -> dict[str, Any]:
    """A row of CSV, where nothing is the empty text."""
    plain: dict[str, Any] = {name: value or None for name, value in row.items()}
    if number := plain.get("probability"):
        plain["probability"] = float(number)
    return plain


def _write_lines(rows: Sequence[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(map(_line, rows)), encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    """A row as JSON that people can read; with escapes where a name is no text."""
    text = json.dumps(row, ensure_ascii=False)
    return (text if _is_text(text) else json.dumps(row)) + "\n"


def _is_text(name: str) -> bool:
    """Whether UTF-8 can hold it: names of files may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write_table(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The whole table in one step: a reader sees the old one or the new one."""
    made = _beside(out)
    if out.suffix == ".parquet":
        arrow = importlib.import_module("pyarrow")
        kinds = {name: arrow.float64() if name == "probability" else arrow.string() for name in COLUMNS}
        _arrow().write_table(arrow.Table.from_pylist(list(rows), schema=arrow.schema(list(kinds.items()))), made)
    elif out.suffix == ".jsonl":
        _write_lines(rows, made)
    else:
        with made.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    made.replace(out)


def _beside(out: Path) -> Path:
    """Where a file is made that takes a place when it is whole."""
    return out.with_name(f".{out.name}.new")


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install 'vitrail[parquet]'; or write .csv or .jsonl") from error
