"""Sections in a terminal, by rich."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from vitrail.report.sections import Code, Facts, Gallery, Group, Matrix, Picture, Section, Table, Text
from vitrail.report.values import show

WIDTH = 100  # of `str(report)`; a terminal gives its own
_WORD = 30  # letters of a word that is not wrapped
_GAP = 3  # columns between those of a table
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
    for part in _parts(section, options.max_width - 1):
        shown = Padding(part, (0, 0, 0, 1))
        measured = console.measure(shown, options=options.update(width=_UNBOUNDED))
        least = measured.maximum if isinstance(section, Code) else measured.minimum
        yield from console.render(shown, options.update(width=max(options.max_width, least)))


def _has_text(section: Section) -> bool:
    """Whether a terminal can show anything of a section: a picture without words it cannot."""
    if isinstance(section, Group):
        return any(map(_has_text, section.sections))
    return not isinstance(section, Picture) or bool(section.text)


def _parts(section: Section, room: int) -> Iterator[RenderableType]:
    """What rich shows of a section in so many columns; cells are RichText, so that brackets in them are not markup."""
    if isinstance(section, Code):
        yield RichText(section.text, no_wrap=True, overflow="ignore")
    elif isinstance(section, Facts):
        grid = RichTable.grid(padding=(0, 3, 0, 0))
        for name, value in section.shown():
            grid.add_row(RichText(name, style="dim"), RichText(value))
        yield grid
    elif isinstance(section, Table):
        yield _table(section, room)
    elif isinstance(section, Matrix):
        yield _matrix(section, room)
    elif isinstance(section, Text | Picture | Gallery):
        if section.text:
            yield RichText(section.text)
        if isinstance(section, Gallery) and any(shot.lines for shot in section.shots):
            yield _captions(section)


def _table(section: Table, room: int) -> RichTable:
    """Where the terminal is narrow, text is wrapped between words; numbers and paths stay whole."""
    rows, right = list(section.shown()), section.right()
    whole = [one or unit == "path" for one, unit in zip(right, section.columns.values(), strict=True)]
    cells = [["  " * depth + text for depth, text in row] for row in rows]
    grid = _grid(list(section.columns), cells, room, right=right, whole=whole)
    for row, content in zip(grid.rows, rows, strict=True):
        row.style = "dim" if content[0][0] > 0 else None
    return grid


def _matrix(section: Matrix, room: int) -> RenderableType:
    """The counts as a table; of a large matrix only its size."""
    if len(section.columns) > section.MOST:
        return RichText(f"{len(section.rows)} x {len(section.columns)}: see the HTML report.")
    cells = [[name, *map(show, counts)] for name, counts in zip(section.rows, section.counts, strict=True)]
    numeric = [False, *(True for _ in section.columns)]
    return _grid(["", *section.columns], cells, room, right=numeric, whole=[True] * len(numeric))


def _grid(
    titles: Sequence[str], rows: Sequence[Sequence[str]], room: int, *, right: Sequence[bool], whole: Sequence[bool]
) -> RichTable:
    """A table; what cannot be as narrow as the room that it has goes beyond it, so nothing is cut off."""
    texts = [[title, *(row[index] for row in rows)] for index, title in enumerate(titles)]
    widths = [max(map(cell_len, column)) for column in texts]
    least = [
        width if kept else min(width, _longest_word(column))
        for width, kept, column in zip(widths, whole, texts, strict=True)
    ]
    room -= _GAP * (len(titles) - 1)
    while sum(widths) > room and widths != least:
        wide = [index for index, width in enumerate(widths) if width > least[index]]
        widths[max(wide, key=widths.__getitem__)] -= 1
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for title, width, to_right, kept in zip(titles, widths, right, whole, strict=True):
        justify: JustifyMethod = "right" if to_right else "left"
        grid.add_column(RichText(title), justify=justify, no_wrap=kept, width=max(width, 1), overflow="fold")
    for row in rows:
        grid.add_row(*map(RichText, row))
    return grid


def _longest_word(texts: Sequence[str]) -> int:
    return min(max((cell_len(word) for text in texts for word in text.split()), default=1), _WORD)


def _captions(section: Gallery) -> RichTable:
    """The captions of the images, a row each."""
    grid = RichTable.grid(padding=(0, 3, 0, 0))
    for shot in section.shots:
        grid.add_row(*(RichText(line.text, style="dim" if line.tone == "soft" else "") for line in shot.lines))
    return grid
