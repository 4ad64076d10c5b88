"""Reports: titled sections of facts, tables, text and pictures that print to a terminal, to JSON and to one HTML file.

    report = Report("a title", (Facts("Totals", {"MACs": 363_000_000}, {"MACs": "si"}),))
    print(report); report.to_json("report.json"); report.to_html("report.html")

A section holds plain values; how a value is shown is said by its unit, so that JSON keeps every digit.
"""

import base64
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import ClassVar, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from vitrail import charts
from vitrail.errors import ConfigError, nearest

Value = str | int | float | bool | None
Unit = Literal["", "si", "bytes", "share", "path"]

WIDTH = 100  # of `str(report)`; a terminal gives its own
_UNBOUNDED = 10_000  # columns of a terminal that leaves everything room
_NUMERIC = ("si", "bytes", "share")
_PNG = "data:image/png;base64,"


@dataclass(frozen=True)
class Facts:
    """Names and values, each with a unit where a plain number would not do."""

    kind: ClassVar[str] = "facts"
    title: str
    values: Mapping[str, Value]
    units: Mapping[str, Unit] = field(default_factory=dict)

    def shown(self) -> list[tuple[str, str]]:
        """Names and values as text."""
        return [(name, show(value, self.units.get(name, ""))) for name, value in self.values.items()]


@dataclass(frozen=True)
class Table:
    """Rows of values by column; `columns` gives each column's unit and the order."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Mapping[str, Unit]
    rows: Sequence[Mapping[str, Value]]

    def shown(self) -> Iterator[list[tuple[int, str]]]:
        """Rows of cells as indentation and text; only a column of paths indents."""
        ancestors: list[str] = []
        for row in self.rows:
            cells = []
            for name, unit in self.columns.items():
                value = row.get(name)
                cells.append(_nested(str(value), ancestors) if unit == "path" else (0, show(value, unit)))
            yield cells

    def right(self) -> list[bool]:
        """Which columns stand at the right: those of numbers."""
        return [
            unit in _NUMERIC or (unit == "" and all(isinstance(row.get(name), int | float) for row in self.rows))
            for name, unit in self.columns.items()
        ]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    title: str
    text: str


@dataclass(frozen=True)
class Picture:
    """A chart as SVG, or a PNG as a data URI, and what is to be seen on it, which is all that a terminal shows."""

    kind: ClassVar[str] = "picture"
    title: str
    source: str
    text: str

    @property
    def suffix(self) -> str:
        """What the name of its file ends with: .png or .svg."""
        return ".png" if self.source.startswith(_PNG) else ".svg"

    def save(self, path: str | Path) -> None:
        """Writes the picture to a file of its own."""
        path = Path(path)
        if path.suffix.lower() != self.suffix:
            raise ConfigError(
                f"the picture {self.title!r} is {self.suffix[1:].upper()}; {path} must end in {self.suffix}"
            )
        if self.suffix == ".png":
            path.write_bytes(base64.b64decode(self.source.removeprefix(_PNG)))
        else:
            path.write_text(charts.alone(self.source), encoding="utf-8")


Section = Facts | Table | Text | Picture
_KINDS: dict[str, type[Section]] = {cls.kind: cls for cls in (Facts, Table, Text, Picture)}


@dataclass(frozen=True)
class Report:
    """What a tool found out, ready to print, store and show."""

    title: str
    sections: Sequence[Section]

    def __getitem__(self, title: str) -> Section:
        for section in self.sections:
            if section.title == title:
                return section
        raise ConfigError(
            f"the report has no section {title!r}; {nearest(title, [section.title for section in self.sections])}"
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield RichText(self.title, style="bold")
        for section in self.sections:
            yield RichText(f"\n{section.title}", style="bold cyan")
            shown = _terminal(section)
            # What cannot be as narrow as the terminal goes beyond its edge: a number that is cut off is another number.
            least = console.measure(shown, options=options.update(width=_UNBOUNDED)).minimum
            yield from console.render(shown, options.update(width=max(options.max_width, least)))

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as captured:
            console.print(self, crop=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def print(self) -> None:
        """Prints to the terminal, in its width and colours."""
        Console().print(self, crop=False)

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON with all digits, also written to `path` where one is given."""
        sections = [{"kind": section.kind} | asdict(section) for section in self.sections]
        return _written(json.dumps({"title": self.title, "sections": sections}, indent=2, ensure_ascii=False), path)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` turned into text."""
        data = json.loads(text)
        sections = []
        for section in data["sections"]:
            kind = section.pop("kind")
            if kind not in _KINDS:
                raise ConfigError(f"a report has no sections of kind {kind!r}; {nearest(kind, _KINDS)}")
            sections.append(_KINDS[kind](**section))
        return cls(data["title"], tuple(sections))

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML file that needs no network, also written to `path` where one is given."""
        body = "\n".join(
            f"<section>\n<h2>{html.escape(section.title)}</h2>\n{section_html(section)}\n</section>"
            for section in self.sections
        )
        drawn = any(isinstance(section, Picture) for section in self.sections)
        style = f"{charts.COLOURS}\n{charts.STYLE}\n{_PICTURES}" if drawn else ""
        return _written(page(self.title, f"<h1>{html.escape(self.title)}</h1>\n{body}", style=style), path)


def page(title: str, body: str, *, style: str = "") -> str:
    """One HTML file that needs no network: a body of HTML in the style of all reports, and what a page adds to it."""
    whole = f"{_STYLE}\n{style}".rstrip()
    return _PAGE.replace("{{title}}", html.escape(title)).replace("{{style}}", whole).replace("{{body}}", body)


def show(value: Value, unit: Unit = "") -> str:
    """A value as people read it: 1,234; 1.23 G; 1.23 MiB; 12.3 %."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "\N{EN DASH}", True: "yes", False: "no"}[value]
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "si":
        return _scaled(value, 1000, ("", "k", "M", "G", "T", "P"))
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _scaled(value: float, step: int, prefixes: Sequence[str]) -> str:
    power = 0
    while abs(value) >= step and power < len(prefixes) - 1:
        value, power = value / step, power + 1
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if power == 0 and isinstance(value, int):
        digits = str(value)
    return f"{digits} {prefixes[power]}".rstrip()


def _nested(path: str, ancestors: list[str]) -> tuple[int, str]:
    """Depth and short name of a dotted path below the rows above it, which `ancestors` remembers."""
    while ancestors and not path.startswith(f"{ancestors[-1]}."):
        ancestors.pop()
    depth, name = len(ancestors), path.removeprefix(f"{ancestors[-1]}." if ancestors else "")
    ancestors.append(path)
    return depth, name


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def _terminal(section: Section) -> Padding:
    """A section for rich; cells are Text, so that brackets in them are no markup."""
    if isinstance(section, Text | Picture):
        return Padding(RichText(section.text), (0, 0, 0, 1))
    grid: RichTable
    if isinstance(section, Facts):
        grid = RichTable.grid(padding=(0, 3, 0, 0))
        for name, value in section.shown():
            grid.add_row(RichText(name, style="dim"), RichText(value))
        return Padding(grid, (0, 0, 0, 1))
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    rows = list(section.shown())
    for index, (name, right) in enumerate(zip(section.columns, section.right(), strict=True)):
        # Where the terminal is narrow, words give way; numbers and paths stay whole.
        whole = right or section.columns[name] == "path"
        least = max(len(name), *(2 * cells[index][0] + len(cells[index][1]) for cells in rows)) if whole else None
        grid.add_column(RichText(name), justify="right" if right else "left", no_wrap=whole, min_width=least)
    for cells in rows:
        nested = cells[0][0] > 0
        grid.add_row(*(RichText("  " * depth + text) for depth, text in cells), style="dim" if nested else None)
    return Padding(grid, (0, 0, 0, 1))


def section_html(section: Section) -> str:
    """A section as HTML, without its title."""
    if isinstance(section, Text):
        return f"<p>{html.escape(section.text)}</p>"
    if isinstance(section, Picture):
        image = f'<img src="{section.source}" alt="">' if section.suffix == ".png" else section.source
        return f"<figure>{image}\n<figcaption>{html.escape(section.text)}</figcaption></figure>"
    if isinstance(section, Facts):
        pairs = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in section.shown())
        return "<dl>\n" + "\n".join(pairs) + "\n</dl>"
    classes = [' class="number"' if right else "" for right in section.right()]
    head = "".join(
        f'<th scope="col"{cls}>{html.escape(name)}</th>' for name, cls in zip(section.columns, classes, strict=True)
    )
    rows = []
    for cells in section.shown():
        nested = ' class="nested"' if cells[0][0] else ""
        columns = zip(cells, classes, strict=True)
        rows.append(f"<tr{nested}>" + "".join(_cell(depth, text, cls) for (depth, text), cls in columns) + "</tr>")
    body = "\n".join(rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _cell(depth: int, text: str, cls: str) -> str:
    indent = f' style="padding-left:{1.4 * depth:.1f}em"' if depth else ""
    return f"<td{cls}{indent}>{html.escape(text)}</td>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667085; --line: #e3e6eb; --paper: #fff; --accent: #2a6fb8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --soft: #98a2b3; --line: #2f3744; --paper: #14181f; --accent: #7db7f0 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 3rem 1.5rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
h1 { margin: 0 0 2rem; font-size: 1.75rem; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em }
h2 { margin: 2.5rem 0 .75rem; font-size: .8rem; font-weight: 650; letter-spacing: .08em; text-transform: uppercase;
  color: var(--accent) }
p { max-width: 44rem; color: var(--soft) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 2rem; margin: 0 }
dt { color: var(--soft) }
dd { margin: 0; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
table { width: 100%; border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .35rem 1.5rem .35rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 500 }
th:last-child, td:last-child { padding-right: 0 }
.number { text-align: right }
.nested td { color: var(--soft) }
""".strip()

_PICTURES = """
figure { margin: 0; max-width: 34rem }
figure img { display: block; width: 100%; image-rendering: pixelated }
figcaption { margin-top: .6rem; font-size: .9rem; color: var(--soft) }
""".strip()

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
{{style}}
</style>
</head>
<body>
{{body}}
</body>
</html>
"""
