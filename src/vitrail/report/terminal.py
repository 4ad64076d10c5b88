"""Sections in a terminal, by rich."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from vitrail.report.sections import Code, Facts, Gallery, Group, Matrix, Picture, Section, Table, Text
from vitrail.report.values import Value

WIDTH = 100  # of `str(report)`; a terminal gives its own
_UNBOUNDED = 10_000  # columns of a terminal that leaves everything room


def render(section: Section, console: Console, options: ConsoleOptions, *, heading: str = "bold cyan") -> RenderResult:
    """A section with its title; what cannot be as narrow as the terminal goes beyond its edge, so no number is cut."""
    if not _has_text(section):
        return
    if section.title:
        yield RichText(f"\n{section.title}", style=heading)
    if isinstance(section, Group):
        for member in section.sections:
            yield from render(member, console, options, heading="bold")
        return
    for part in _parts(section):
        shown = Padding(part, (0, 0, 0, 1))
        measured = console.measure(shown, options=options.update(width=_UNBOUNDED))
        least = measured.maximum if isinstance(section, Code) else measured.minimum
        yield from console.render(shown, options.update(width=max(options.max_width, least)))


def _has_text(section: Section) -> bool:
    """Whether a terminal can show anything of a section: a picture without words it cannot."""
    if isinstance(section, Group):
        return any(map(_has_text, section.sections))
    return not isinstance(section, Picture) or bool(section.text)


def _parts(section: Section) -> Iterator[RenderableType]:
    """What rich shows of a section; cells are RichText, so that brackets in them are not markup."""
    if isinstance(section, Code):
        yield RichText(section.text, no_wrap=True, overflow="ignore")
    elif isinstance(section, Facts):
        grid = RichTable.grid(padding=(0, 3, 0, 0))
        for name, value in section.shown():
            grid.add_row(RichText(name, style="dim"), RichText(value))
        yield grid
    elif isinstance(section, Table):
        yield _table(section)
    elif isinstance(section, Matrix):
        yield _matrix(section)
    elif isinstance(section, Text | Picture | Gallery):
        if section.text:
            yield RichText(section.text)
        if isinstance(section, Gallery) and any(shot.lines for shot in section.shots):
            yield _captions(section)


def _table(section: Table) -> RichTable:
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    rows = list(section.shown())
    for index, (name, right) in enumerate(zip(section.columns, section.right(), strict=True)):
        # Where the terminal is narrow, words are wrapped; numbers and paths stay whole.
        whole = right or section.columns[name] == "path"
        widths = [len(name), *(2 * cells[index][0] + len(cells[index][1]) for cells in rows)]
        least = max(widths) if whole else None
        grid.add_column(RichText(name), justify="right" if right else "left", no_wrap=whole, min_width=least)
    for cells in rows:
        nested = cells[0][0] > 0
        grid.add_row(*(RichText("  " * depth + text) for depth, text in cells), style="dim" if nested else None)
    return grid


def _matrix(section: Matrix) -> RenderableType:
    """The counts as a table; of a large matrix only its size."""
    if len(section.columns) > section.MOST:
        return RichText(f"{len(section.rows)} x {len(section.columns)}: see the HTML report.")
    cells: list[dict[str, Value]] = [
        {"": name, **{str(index): count for index, count in enumerate(row)}}
        for name, row in zip(section.rows, section.counts, strict=True)
    ]
    grid = _table(Table("", {"": "", **{str(index): "" for index in range(len(section.columns))}}, cells))
    for column, name in zip(grid.columns[1:], section.columns, strict=True):
        column.header, column.no_wrap, column.min_width = RichText(name), True, None
    return grid


def _captions(section: Gallery) -> RichTable:
    """The captions of the images, a row each."""
    grid = RichTable.grid(padding=(0, 3, 0, 0))
    for shot in section.shots:
        grid.add_row(*(RichText(line.text, style="dim" if line.tone == "soft" else "") for line in shot.lines))
    return grid
