"""CSV and JSONL tables of images: a path, and a label, several labels, or one column of zeros and ones a class."""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Found, Subset
from vitrail.data.folder import SPLIT_NAMES, Files, natural
from vitrail.data.joined import joined_by, split_labels, with_marks
from vitrail.data.names import composed
from vitrail.errors import DataError, listed, nearest

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
PATH = ("path", "image", "file", "filename", "file_name", "filepath", "image_path")
LABEL = ("label", "class", "category")
LABELS = ("labels", "classes", "tags")
SPLIT = ("split", "set", "subset")
_LOOKED_AT = 100  # first rows, whose files must not all be missing
_LIST = re.compile(r"""\[[0-9\s.,]*\] | [\[({] \s* ['"] .* ['"] ,? \s* [\])}]""", re.VERBOSE | re.DOTALL)

Row = Mapping[str, Any]


class Columns(NamedTuple):
    """Which column says what; exactly one of `label`, `labels` and `one_hot` is there."""

    path: str
    label: str | None
    labels: str | None
    one_hot: tuple[str, ...]
    split: str | None
    ignored: tuple[str, ...]


def read_table(path: Path) -> Found:
    """Splits of a table; image paths are relative to its folder."""
    rows = _read_jsonl(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _read_csv(path)
    if not rows:
        raise DataError(f"{path} has no rows; each should name an image and its label")
    columns = _columns(path, rows)
    files = [_text(path, number, columns.path, row.get(columns.path)) for number, row in rows]
    _refuse_missing(path, files)
    labels, classes, note = _labels(path, rows, columns)
    whole = Files(path.parent, files, labels, classes, name=str(path))
    _refuse_joined(path, rows, columns)
    notes = [f"{path} has {len(rows):,} images; {note}.", *_doubts(labels, classes, columns)]
    notes += _contradictions(files, [number for number, _ in rows], labels, classes)
    if columns.ignored:
        notes.append(f"These columns are not used: {', '.join(columns.ignored)}.")
    if columns.split is None:
        return Found(whole, notes=tuple(notes))
    parts = _split(path, rows, columns.split)
    if not parts["train"]:
        raise DataError(f"{path} has no row whose {columns.split} is train")
    subsets = {name: Subset(whole, indices) for name, indices in parts.items() if indices}
    return Found(subsets["train"], subsets.get("val"), subsets.get("test"), tuple(notes))


def _read_csv(path: Path) -> list[tuple[int, Row]]:
    """Line numbers and rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    first = text.split("\n", 1)[0]
    delimiter = max("\t;,", key=first.count)  # the comma wins where none occurs
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[tuple[int, Row]] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) < len(header):
            raise DataError(f"{path} has two columns of one name; rename one")
        for cells in reader:
            if not any(cells):
                continue
            if len(cells) != len(header):
                raise DataError(f"{path}, line {reader.line_num}: {len(cells)} cells, but {len(header)} columns")
            rows.append((reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    return rows


def _read_jsonl(path: Path) -> list[tuple[int, Row]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    rows: list[tuple[int, Row]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{path}, line {number}: no JSON ({reason})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: an object with a path and a label is expected, not {line[:40]!r}")
        rows.append((number, row))
    return rows


def _columns(path: Path, rows: Sequence[tuple[int, Row]]) -> Columns:
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    given = {name.lower(): name for name in names}

    def pick(options: Sequence[str]) -> str | None:
        return next((given[option] for option in options if option in given), None)

    image, label, labels, split = pick(PATH), pick(LABEL), pick(LABELS), pick(SPLIT)
    if image is None:
        raise DataError(f"{path} has no column of image paths, only {', '.join(names)}; {_hint(names, PATH)}")
    rest = tuple(name for name in names if name not in (image, label, labels, split))
    if label is not None and labels is not None:
        raise DataError(f"{path} has both a column {label!r} and a column {labels!r}; leave one of them")
    if label is not None or labels is not None:
        for name in rest:  # a slip of the pen in "split" must not pass in silence
            if (hint := nearest(name.lower(), (*PATH, *LABEL, *LABELS, *SPLIT))).startswith("did you mean"):
                raise DataError(f"{path} has an unknown column {name!r}; {hint} (rename it if it is something else)")
        return Columns(image, label, labels, (), split, rest)
    for number, row in rows:
        for name in rest:
            if str(row.get(name)).lower() not in ("0", "1", "0.0", "1.0", "true", "false"):
                raise DataError(
                    f"{path} has no label column, so every other column must hold 0 or 1 for a class, but line "
                    f"{number} has {name}={row.get(name)!r}; {_hint(rest, (*LABEL, *LABELS))}"
                )
    if not rest:
        raise DataError(f"{path} has no labels; add a column label, or labels for several an image")
    return Columns(image, None, None, rest, split, ())


def _hint(names: Sequence[str], options: Sequence[str]) -> str:
    """Which column looks like one of the options, or what they are."""
    for name in names:
        if (hint := nearest(name.lower(), options)).startswith("did you mean"):
            return f"{name!r}: {hint}"
    return f"call it {options[0]} ({', '.join(options[1:])} will do too)"


def _text(path: Path, number: int, column: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value) == "":
        raise DataError(f"{path}, line {number}: {column} is {value!r}; it must be a text that is not empty")
    if re.fullmatch(r"-[0-9]+", str(value)):
        raise DataError(f"{path}, line {number}: {column} is {value}; labels count from 0")
    return str(value)


def _labels(path: Path, rows: Sequence[tuple[int, Row]], columns: Columns) -> tuple[Tensor, tuple[str, ...], str]:
    """Labels N or N K, the classes, and what to say of them."""
    if columns.label is not None:
        singles = [_single(path, number, columns.label, row.get(columns.label)) for number, row in rows]
        classes = tuple(sorted(set(singles), key=natural))
        position = {name: index for index, name in enumerate(classes)}
        indices = torch.tensor([position[name] for name in singles], dtype=torch.int64)
        return indices, classes, f"one label each, of {len(classes)} classes"
    if columns.labels is not None:
        several = [_several(path, number, columns.labels, row.get(columns.labels)) for number, row in rows]
        classes = tuple(sorted({name for names in several for name in names}, key=natural))
        position = {name: index for index, name in enumerate(classes)}
        marks = torch.zeros(len(rows), len(classes))
        for at, names in enumerate(several):
            marks[at, [position[name] for name in names]] = 1.0
        return marks, classes, f"several labels each, of {len(classes)} classes"
    classes = columns.one_hot
    marks = torch.tensor(
        [[float(str(row[name]).lower() in ("1", "1.0", "true")) for name in classes] for _, row in rows]
    )
    if bool((marks.sum(dim=1) == 1).all()):
        return marks.argmax(dim=1), classes, f"one label each, by {len(classes)} columns of zeros and ones"
    return marks, classes, f"several labels each, by {len(classes)} columns of zeros and ones"


def _single(path: Path, number: int, column: str, value: Any) -> str:
    if isinstance(value, list) or (isinstance(value, str) and _LIST.fullmatch(value)):
        raise DataError(
            f"{path}, line {number}: {column} is one class an image, but this is a list: {value}; for several labels "
            "call the column labels and join them by |"
        )
    return _text(path, number, column, value)


def _several(path: Path, number: int, column: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) and _LIST.fullmatch(value):
        raise DataError(
            f"{path}, line {number}: {column} holds a list written as text, {value}; write names joined by | (nothing "
            "where there is none), or lists in a .jsonl file"
        )
    if isinstance(value, str):
        return split_labels(value)
    if not isinstance(value, list):
        raise DataError(f"{path}, line {number}: {column} is {value!r}; it must be a list, or names joined by |")
    return [_text(path, number, column, item) for item in value]


def _refuse_joined(path: Path, rows: Sequence[tuple[int, Row]], columns: Columns) -> None:
    """DataError where a cell holds several labels that would become one class; a list means what it says."""
    column = columns.label or columns.labels
    if column is None:
        return
    cells = [(number, str(cell)) for number, row in rows if not isinstance(cell := row.get(column), list | None)]
    found = joined_by([cell for _, cell in cells], several=columns.label is None)
    if found is None:
        return
    name, separator = found
    number = next(number for number, cell in cells if name in cell)
    if columns.label is None:
        mark = "the spaces" if separator == " " else separator
        raise DataError(
            f"{path}, line {number}: labels are joined by |; {name!r} would be one class: replace {mark} by | (where "
            "it is the name of a class, write lists of labels in a .jsonl file)"
        )
    raise DataError(
        f"{path}, line {number}: {column} is one class an image, and {name!r} would be one; for several labels call "
        f"the column labels and join them by | (where it is one class, give it a name without {separator})"
    )


def _doubts(labels: Tensor, classes: Sequence[str], columns: Columns) -> Iterator[str]:
    """What a person should look at, though it may be right."""
    if columns.one_hot:
        return
    if odd := with_marks(classes, several=columns.labels is not None):
        yield f"Each of these is one class, in spite of the marks in its name: {listed(map(repr, odd))}."
    if made := composed(classes):
        yield (
            f"Each of these is one class, though all its words are classes too: {listed(map(repr, made))}; if they are "
            "several labels of an image, join them by | in a column labels."
        )
    if labels.ndim == 2 and bool((labels.sum(dim=1) == 1).all()):
        yield (
            f"Every image has one label, though {columns.labels} may hold several, joined by |; if there is never more "
            "than one, call the column label."
        )


def _contradictions(
    files: Sequence[str], lines: Sequence[int], labels: Tensor, classes: Sequence[str]
) -> Iterator[str]:
    """One note of all images that stand in two lines with different labels."""
    first: dict[str, int] = {}
    found: dict[str, tuple[int, int]] = {}
    for at, file in enumerate(files):
        before = first.setdefault(os.path.normpath(file), at)
        if before != at and not torch.equal(labels[before], labels[at]):
            found.setdefault(file, (before, at))
    if found:
        file, pair = next(iter(found.items()))
        one, other = (f"{_written(labels[at], classes)} in line {lines[at]}" for at in pair)
        yield (
            f"Images that occur again with another label: {len(found):,}, such as {file}, which is {one} and {other}; "
            "decide which is right, or give them one line each with all their labels, joined by | in a column labels."
        )


def _written(label: Tensor, classes: Sequence[str]) -> str:
    """A row of labels, as a table has it."""
    chosen: Iterable[int] = [int(label)] if label.ndim == 0 else label.nonzero()[:, 0].tolist()
    return repr("|".join(classes[index] for index in chosen))


def _split(path: Path, rows: Sequence[tuple[int, Row]], column: str) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, (number, row) in enumerate(rows):
        value = str(row.get(column)).lower()
        if value not in SPLIT_NAMES:
            raise DataError(
                f"{path}, line {number}: {column} is {row.get(column)!r}, no split; {nearest(value, SPLIT_NAMES)}"
            )
        parts[SPLIT_NAMES[value]].append(index)
    return parts


def _refuse_missing(path: Path, files: Sequence[str]) -> None:
    """One missing file is a broken image; none found at all means that the paths start somewhere else."""
    if not any((path.parent / file).exists() for file in files[:_LOOKED_AT]):
        raise DataError(
            f"{path}: no image of the first {min(len(files), _LOOKED_AT)} rows exists, such as "
            f"{path.parent / files[0]}; paths must be absolute, or relative to the table's folder"
        )
