"""CSV and JSONL tables of images: a column of paths, and columns of targets such as labels or numbers."""

import csv
import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.dataset import Found, Subset
from vitrail.data.sources.folder import SPLIT_NAMES, Files
from vitrail.data.targets import Column, Target
from vitrail.data.targets.target import Read
from vitrail.errors import DataError, listed, nearest
from vitrail.files import is_file, read_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
PATH = ("path", "image", "file", "filename", "file_name", "filepath", "image_path")
SPLIT = ("split", "set", "subset")
_NAME = 60  # characters of the name of a column that errors show
_CHECKED = 100  # first rows, whose files must not all be missing
_TRIED = 20  # first rows with a value, which say what a column holds that the user named
_TYPO = 0.8  # similarity from which a column name counts as a typo of a known one

Row = Mapping[str, Any]


class Wanted(NamedTuple):
    """What to read from a table: the columns of the target, and the kinds that a task can use; empty: decide."""

    columns: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    targets: bool = True  # whether targets are read at all
    several: bool = False  # whether targets of several kinds are read, which some images may lack
    group: str | None = None  # how images are grouped: a column, a pattern of paths, or "duplicates"
    fold: tuple[int, int] | None = None  # (i, k): the i-th of k parts is held out


class _Table(NamedTuple):
    """The rows of a table with their line numbers, and the columns of paths and splits."""

    path: Path
    rows: Sequence[tuple[int, Row]]
    image: str
    split: str | None
    others: tuple[str, ...]

    def column(self, name: str) -> Column:
        """A column by its name."""
        return Column(self.path, name, [row.get(name) for _, row in self.rows], [number for number, _ in self.rows])


def read_table(path: Path, wanted: Wanted = Wanted()) -> Found:  # noqa: B008  (immutable)
    """The splits of a table; image paths are relative to its folder. Without a target column it is unlabelled."""
    rows = _read_jsonl(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _read_csv(path)
    if not rows:
        raise DataError(f"{path} has no rows; each row must name an image")
    table = _columns(path, rows)
    files = [_file(table, row) for row in range(len(rows))]
    _refuse_missing(path, files)
    reads, used = _targets(table, wanted)
    fields, schema = ({one.target.field: getattr(one, name) for one in reads} for name in ("values", "target"))
    whole = Files(path.parent, files, fields, schema, name=str(path))
    if wanted.group in table.others:
        whole.groups, used = _groups(table.column(str(wanted.group))), (*used, str(wanted.group))
    first = "; ".join(one.notes[0] for one in reads) or "no labels" + _no_labels_hint(table)
    notes = [f"{path} has {len(rows):,} images; {first}."]
    for read in reads:
        notes += [*read.notes[1:], *_contradictions(files, [number for number, _ in rows], read)]
    if ignored := [name for name in table.others if name not in used]:
        notes.append(f"These columns are not used: {', '.join(ignored)}.")
    if table.split is None:
        return Found(whole, notes=tuple(notes))
    parts = _split(table, table.split)
    if not parts["train"]:
        raise DataError(f"{path} has no row with train in the column {table.split!r}")
    subsets = {name: Subset(whole, indices) for name, indices in parts.items() if indices}
    return Found(subsets["train"], subsets.get("val"), subsets.get("test"), tuple(notes))


def _groups(column: Column) -> list[str]:
    """The cells of a column as names of groups."""
    for row, cell in enumerate(column.cells):
        if cell is None or str(cell) == "":
            raise column.error(row, "the group is missing; give one to every image")
    return [str(cell) for cell in column.cells]


def _read_csv(path: Path) -> list[tuple[int, Row]]:
    """Line numbers and rows."""
    try:
        text = read_text(path, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    first = text.split("\n", 1)[0]
    delimiter = max("\t;,", key=first.count)  # the comma wins where none occurs
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[tuple[int, Row]] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) < len(header):
            raise DataError(f"{path} has two columns with the same name; rename one")
        for cells in reader:
            if not any(cells):
                continue
            if len(cells) != len(header):
                raise DataError(f"{path}, line {reader.line_num}: {len(cells)} cells, expected {len(header)} columns")
            rows.append((reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    return rows


def _read_jsonl(path: Path) -> list[tuple[int, Row]]:
    try:
        lines = read_text(path, encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
    rows: list[tuple[int, Row]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{path}, line {number}: not valid JSON ({reason})") from error
        if r"\ud" in line.lower() and _is_broken(row):
            raise DataError(f"{path}, line {number}: not valid JSON (half of a surrogate pair, or NaN)")
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object with a path, not {line[:40]!r}")
        rows.append((number, row))
    return rows


def _is_broken(row: Any) -> bool:
    """Whether text has half of a surrogate pair, beyond those that stand for bytes in the names of files."""
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogateescape")
    except ValueError:
        return True
    return False


def _columns(path: Path, rows: Sequence[tuple[int, Row]]) -> _Table:
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    given = {name.lower(): name for name in names}

    def pick(options: Sequence[str]) -> str | None:
        return next((given[option] for option in options if option in given), None)

    image, split = pick(PATH), pick(SPLIT)
    if image is None:
        have = listed(map(_short, names), 20)
        raise DataError(f"{path} has no column of image paths; its columns are {have}; {_hint(names, PATH)}")
    return _Table(path, rows, image, split, tuple(name for name in names if name not in (image, split)))


def _short(name: str) -> str:
    """The name of a column in one line."""
    return name if len(name) < _NAME and name.isprintable() else f"{name!r:.{_NAME}}"


def _hint(names: Sequence[str], options: Sequence[str]) -> str:
    """The column that looks like one of the options, or the options."""
    for name in names:
        if (hint := nearest(name.lower(), options)).startswith("did you mean"):
            return f"{name!r:.{_NAME}}: {hint}"
    return f"name one {options[0]} (also accepted: {', '.join(options[1:])})"


def _targets(table: _Table, wanted: Wanted) -> tuple[list[Read], tuple[str, ...]]:
    """The targets of a table and the columns they use; several only for a task that learns from several."""
    _refuse_unknown(table, wanted.columns)
    columns = [table.column(name) for name in wanted.columns or table.others]
    kinds = [_kind(name) for name in wanted.kinds or Target.kinds] if wanted.several else []
    found = [(kind, column) for kind in kinds if (column := kind.named_column(columns))]
    if kinds and wanted.columns:
        found = _one_each(kinds, columns)
    if len(found) > 1 or (wanted.several and wanted.kinds):
        return [_partly(kind, column) for kind, column in found], tuple(column.name for _, column in found)
    read, used = _target(table, wanted)
    return [] if read is None else [read], used


def _one_each(kinds: Sequence[type[Target]], columns: Sequence[Column]) -> list[tuple[type[Target], Column]]:
    """The kind of each column that the user named, for a task that learns from several."""
    found: dict[type[Target], Column] = {}
    for column in columns:
        kind = _best(kinds, [column])
        if kind in found:
            raise DataError(
                f"{column.path}: the columns {found[kind].name!r} and {column.name!r} are both of kind {kind.kind!r}; "
                "name one of them"
            )
        found[kind] = column
    return list(found.items())


def _partly(kind: type[Target], column: Column) -> Read:
    """A target of which some cells may say that the value is not known."""
    rows = [row for row, cell in enumerate(column.cells) if cell not in kind.missing_cells]
    if len(rows) in (0, len(column.cells)):
        return kind.read([column])
    read = kind.read([_rows(column, rows)])
    values = read.target.unknown(read.values).repeat(len(column.cells), *[1] * (read.values.ndim - 1))
    values[rows] = read.values
    first = f"{read.notes[0]}, for {len(rows):,} of {len(column.cells):,} images"
    return Read(read.target, values, (first, *read.notes[1:]))


def _rows(column: Column, rows: Sequence[int]) -> Column:
    return Column(column.path, column.name, *([of[row] for row in rows] for of in (column.cells, column.lines)))


def _target(table: _Table, wanted: Wanted) -> tuple[Read | None, tuple[str, ...]]:
    """The requested target, or that of the first kind that recognises columns; and the columns it uses."""
    if not wanted.targets:
        return None, ()
    kinds = [_kind(name) for name in wanted.kinds or Target.kinds]
    if table.split is None:
        _refuse_typos(table, SPLIT)
    columns = [table.column(name) for name in wanted.columns or table.others]
    if wanted.columns:
        return _best(kinds, columns).read(columns), wanted.columns
    _refuse_two_kinds(table, kinds)
    names = {column.name.lower() for column in columns}
    for kind in sorted(kinds, key=lambda kind: names.isdisjoint(kind.column_names)):  # usual names first
        if recognised := kind.recognise(columns):
            return kind.read(recognised), tuple(column.name for column in recognised)
    _refuse_typos(table, [name for kind in kinds for name in kind.column_names])
    return None, ()


def _refuse_unknown(table: _Table, columns: Sequence[str]) -> None:
    """DataError for a column that the table does not have."""
    for name in columns:
        if name not in table.others:
            hint = nearest(name, table.others) if table.others else "it has only the columns of paths and splits"
            raise DataError(f"{table.path} has no column {name!r} for a target; {hint}")


def _kind(name: str) -> type[Target]:
    kind = Target.kinds[name]
    assert issubclass(kind, Target)  # noqa: S101  (registered as such)
    return kind


def _best(kinds: Sequence[type[Target]], columns: Sequence[Column]) -> type[Target]:
    """The kind of columns that the user named: by their usual name, else by their cells."""
    plain = [Column(column.path, f"column {at}", column.cells, column.lines) for at, column in enumerate(columns)]
    by_name = [kind for kind in kinds if kind.named_column(columns) is not None]
    by_cells = [kind for kind in kinds if len(kind.recognise(plain)) == len(plain)]
    if by_name or by_cells or len(kinds) == 1:
        return (by_name or by_cells or list(kinds))[0]
    if len(columns) > 1:
        names = ", ".join(column.name for column in columns)
        raise DataError(
            f"{columns[0].path}: the columns {names} are not one target; name one of them, or a task for each, such as "
            "--task classify,regress"
        )
    readable = [kind for kind in kinds if _reads(kind, columns[0])]
    return min(readable or kinds, key=lambda kind: kind.vague)


def _reads(kind: type[Target], column: Column) -> bool:
    """Whether the first cells of a column with a value are of a kind."""
    rows = [row for row, cell in enumerate(column.cells) if cell not in kind.missing_cells][:_TRIED]
    try:
        kind.read(
            [Column(column.path, column.name, *([of[row] for row in rows] for of in (column.cells, column.lines)))]
        )
    except DataError:
        return False
    return bool(rows)


def _refuse_two_kinds(table: _Table, kinds: Sequence[type[Target]]) -> None:
    """DataError if columns of two kinds have their usual names: the user must choose."""
    columns = [table.column(name) for name in table.others]
    usual = [column.name for kind in kinds if (column := kind.named_column(columns)) is not None]
    if len(usual) > 1:
        raise DataError(
            f"{table.path} has a column {usual[0]!r} and a column {usual[1]!r}; choose one with --label (label= in "
            "Python), or remove one"
        )


def _refuse_typos(table: _Table, options: Sequence[str]) -> None:
    """DataError for a column whose name is most likely a typo of a known one."""
    longer = [option for option in options if len(option) > 3]  # short words are too similar to others
    for name in table.others:
        if close := difflib.get_close_matches(name.lower(), longer, n=1, cutoff=_TYPO):
            raise DataError(
                f"{table.path} has an unknown column {name!r}; did you mean {close[0]!r}? (rename it if it is "
                "something else)"
            )


def _no_labels_hint(table: _Table) -> str:
    """How to get labels from a table that has other columns."""
    return f"; if one of {listed(table.others)} has them, name it with --label" if table.others else ""


def _file(table: _Table, row: int) -> str:
    number, cells = table.rows[row]
    value = cells.get(table.image)
    if isinstance(value, bool) or not isinstance(value, str | int) or str(value) == "":
        raise DataError(
            f"{table.path}, line {number}: {table.image} is {value!r:.100}; expected the path of an image file"
        )
    return str(value)


def _contradictions(files: Sequence[str], lines: Sequence[int], read: Read) -> Iterator[str]:
    """A note on images that are in two lines with different values."""
    first: dict[str, int] = {}
    pairs: dict[str, tuple[int, int]] = {}
    for at, file in enumerate(files):
        before = first.setdefault(os.path.normpath(file), at)
        if before != at and not torch.equal(read.values[before], read.values[at]):
            pairs.setdefault(file, (before, at))
    if pairs:
        file, pair = next(iter(pairs.items()))
        one, other = (f"{read.target.text(read.values[at])!r} in line {lines[at]}" for at in pair)
        yield (
            f"Images in two lines with different values: {len(pairs):,}, such as {file}: {one} and {other}; keep one "
            "line per image (join several labels by | in a column `labels`)."
        )


def _split(table: _Table, column: str) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, (number, row) in enumerate(table.rows):
        value = str(row.get(column)).lower()
        if value not in SPLIT_NAMES:
            raise DataError(
                f"{table.path}, line {number}: {column} is {row.get(column)!r:.100}, not a split; "
                f"{nearest(value, SPLIT_NAMES)}"
            )
        parts[SPLIT_NAMES[value]].append(index)
    return parts


def _refuse_missing(path: Path, files: Sequence[str]) -> None:
    """DataError if no file exists: the paths must start elsewhere. A single missing file is a broken image."""
    files = files[:_CHECKED]
    if not any(is_file(path.parent / file) for file in files):
        raise DataError(
            f"{path}: none of the first {len(files)} images exists, such as "
            f"{str(path.parent / files[0])[:300]}; paths must be absolute, or relative to the table's folder"
        )
