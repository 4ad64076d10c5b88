"""The sections of a report: plain data that a terminal, JSON and a page can show.

A section holds values, not text: its unit says how a value is shown, so that JSON keeps every digit.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from vitrail.errors import ConfigError, nearest
from vitrail.report import charts_axes
from vitrail.report.metric import Figure
from vitrail.report.values import NUMERIC, Unit, Value, show

Tone = Literal["", "good", "bad", "soft"]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """What every section has: on a page, a `folded` section is closed until it is clicked."""

    kind: ClassVar[str]
    folded: bool = False


@dataclass(frozen=True)
class Facts(_Layout):
    """Names and values, each with a unit where a plain number would not do."""

    kind: ClassVar[str] = "facts"
    title: str
    values: Mapping[str, Value]
    units: Mapping[str, Unit] = field(default_factory=dict)

    def shown(self) -> list[tuple[str, str]]:
        """Names and values as text."""
        return [(name, show(value, self.units.get(name, ""))) for name, value in self.values.items()]


@dataclass(frozen=True)
class Table(_Layout):
    """Rows of values by column; `columns` gives the order and each column's unit.

    On a page, `bars` draws a bar beside each share, and rows after the first `fold_after` are folded.
    """

    kind: ClassVar[str] = "table"
    title: str
    columns: Mapping[str, Unit]
    rows: Sequence[Mapping[str, Value]]
    bars: bool = field(default=False, kw_only=True)
    fold_after: int | None = field(default=None, kw_only=True)

    def shown(self) -> Iterator[list[tuple[int, str]]]:
        """Rows of cells as indentation and text; only a column of paths is indented."""
        ancestors: list[str] = []
        for row in self.rows:
            cells = []
            for name, unit in self.columns.items():
                value = row.get(name)
                cells.append(_nested(str(value), ancestors) if unit == "path" else (0, show(value, unit)))
            yield cells

    def right(self) -> list[bool]:
        """Which columns are aligned to the right: those of numbers."""
        return [unit in NUMERIC or (unit == "" and self._numbers(name)) for name, unit in self.columns.items()]

    def _numbers(self, name: str) -> bool:
        values = [row.get(name) for row in self.rows]
        return all(value is None or isinstance(value, int | float) for value in values) and set(values) != {None}


@dataclass(frozen=True)
class Text(_Layout):
    """Paragraphs, one a line; lines that begin with "- " are items of a list."""

    kind: ClassVar[str] = "text"
    title: str
    text: str

    def blocks(self) -> list[list[str]]:
        """Paragraphs as lists of one line, lists as their items with "- " in front."""
        found: list[list[str]] = []
        for line in filter(None, map(str.strip, self.text.splitlines())):
            if line.startswith("- ") and found and found[-1][0].startswith("- "):
                found[-1].append(line)
            else:
                found.append([line])
        return found


@dataclass(frozen=True)
class Code(_Layout):
    """A command, a recipe: text whose lines and spaces matter."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True)
class Picture(_Layout):
    """A chart as SVG, or a PNG or JPEG as a data URI; `text` says what it shows, which is all a terminal has of it.

    `legend` names the curves of the chart in the order of their colours.
    """

    kind: ClassVar[str] = "picture"
    title: str
    source: str
    text: str
    legend: Sequence[str] = field(default=(), kw_only=True)

    @property
    def suffix(self) -> str:
        """The suffix of its file: .svg, .png or .jpg."""
        kind = self.source[len("data:image/") :].partition(";")[0] if self.source.startswith("data:image/") else "svg"
        return {"jpeg": ".jpg"}.get(kind, f".{kind}")

    def save(self, path: str | Path) -> None:
        """Writes the picture to a file of its own."""
        path = Path(path)
        if path.suffix.lower() != self.suffix:
            raise ConfigError(
                f"the picture {self.title!r} is {self.suffix[1:].upper()}; {path} must end in {self.suffix}"
            )
        if self.suffix == ".svg":
            path.write_text(charts_axes.alone(self.source), encoding="utf-8", errors="backslashreplace")
        else:
            path.write_bytes(base64.b64decode(self.source.partition(",")[2]))


@dataclass(frozen=True)
class Matrix(_Layout):
    """Counts by row and column, such as a confusion matrix; with equal names, the diagonal is what is right.

    Numbers for up to 20 columns, and a heat map on a page for more.
    """

    MOST: ClassVar[int] = 20
    kind: ClassVar[str] = "matrix"
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        """Refuses counts that do not fit the names."""
        if len(self.counts) != len(self.rows) or any(len(row) != len(self.columns) for row in self.counts):
            raise ConfigError(f"the matrix {self.title!r} needs {len(self.rows)} x {len(self.columns)} counts")

    @property
    def square(self) -> bool:
        """Whether rows and columns have the same names."""
        return list(self.rows) == list(self.columns)


@dataclass(frozen=True)
class Line:
    """A line of a caption: good and bad are emphasised, soft is small."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Shot:
    """One or several images side by side, PNG or JPEG as data URIs, with a caption; `alt` describes them."""

    images: Sequence[str]
    lines: Sequence[Line] = ()
    alt: str = ""


@dataclass(frozen=True)
class Gallery(_Layout):
    """Images with captions: worst mistakes, attention maps, rebuilt pictures; `large` ones have details to see."""

    kind: ClassVar[str] = "gallery"
    title: str
    text: str
    shots: Sequence[Shot]
    large: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Group(_Layout):
    """Sections under one heading, one below the other, or in 2 or 3 columns where the page is wide enough."""

    kind: ClassVar[str] = "group"
    title: str
    sections: Sequence["Section"]
    columns: int = 1


Section = Facts | Table | Text | Code | Picture | Matrix | Gallery | Group
KINDS: dict[str, type[Section]] = {cls.kind: cls for cls in (Facts, Table, Text, Code, Picture, Matrix, Gallery, Group)}


def result_facts(figures: Mapping[str, Figure]) -> Facts:
    """The figures of a result with the ends of their 95 % intervals, where these are known."""
    values: dict[str, Value] = {}
    units: dict[str, Unit] = {}
    for figure in figures.values():
        ends = zip(("95 % low", "95 % high"), figure.interval or (), strict=False)
        found = {figure.title: figure.value, **{f"{figure.title}, {end}": value for end, value in ends}}
        values |= found
        units |= dict.fromkeys(found, figure.unit)
    return Facts("Result", values, units)


def skipped_table(title: str, skipped: Sequence[tuple[str, str]], **options: Any) -> Table:
    """Images that could not be read, and why; a reason that begins with the name does not repeat it."""
    rows = [{"image": name, "reason": reason.removeprefix(f"{name} ")} for name, reason in skipped]
    return Table(title, {"image": "", "reason": ""}, rows, **options)


def walk(sections: Sequence[Section]) -> Iterator[Section]:
    """All sections, those inside groups included."""
    for section in sections:
        yield section
        if isinstance(section, Group):
            yield from walk(section.sections)


def to_data(section: Section) -> dict[str, Any]:
    """A section as dicts, lists and values, for JSON."""
    data = {"kind": section.kind} | asdict(section)
    if not section.folded:
        del data["folded"]
    if isinstance(section, Group):
        data["sections"] = [to_data(member) for member in section.sections]
    return data


def from_data(data: Mapping[str, Any]) -> Section:
    """The section that `to_data` made dicts and lists of."""
    options = dict(data)
    kind = options.pop("kind")
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of section {kind!r}; {nearest(kind, KINDS)}")
    if kind == "group":
        options["sections"] = tuple(map(from_data, options["sections"]))
    if "legend" in options:
        options["legend"] = tuple(options["legend"])
    if kind == "gallery":
        options["shots"] = tuple(
            Shot(tuple(shot["images"]), tuple(Line(**line) for line in shot["lines"]), shot["alt"])
            for shot in options["shots"]
        )
    return KINDS[kind](**options)


def _nested(path: str, ancestors: list[str]) -> tuple[int, str]:
    """Depth and short name of a dotted path below the rows above it, which `ancestors` remembers."""
    while ancestors and not path.startswith(f"{ancestors[-1]}."):
        ancestors.pop()
    depth, name = len(ancestors), path.removeprefix(f"{ancestors[-1]}." if ancestors else "")
    ancestors.append(path)
    return depth, name
