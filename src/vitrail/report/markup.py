"""Sections as HTML: one template a kind of section, all text escaped, no script and no network."""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from vitrail.report.charts_axes import percent
from vitrail.report.sections import Facts, Matrix, Section, Table, Text, walk
from vitrail.report.styles import css
from vitrail.report.values import NUMERIC

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_PLAIN = (Facts, Table, Text)  # kinds that need no style of their own
_LONG = 40  # letters of a cell that is wrapped
_COLUMNS_WIDE = 5  # columns that a table with bars shows in half of a page


class Cell(NamedTuple):
    """A cell of a table or matrix: its text, CSS class, inline style, tooltip, and whether it names its row."""

    text: str
    cls: str = ""
    style: str = ""
    title: str = ""
    heads: bool = False


def document(title: str, sections: Sequence[Section]) -> str:
    """A whole page of a report's sections."""
    return page(title, template("report.html").render(title=title, sections=sections), style=section_style(sections))


def page(title: str, body: str, *, style: str = "") -> str:
    """One HTML file that needs no network: a body of HTML in the style of all reports, and what a page adds to it."""
    whole = f"{css('page')}\n{style}".rstrip()
    return template("page.html").render(title=title, style=whole, body=body)


def section_html(section: Section) -> str:
    """A section as HTML, without its title."""
    return template(f"{section.kind}.html").render(section=section)


def section_style(sections: Sequence[Section]) -> str:
    """The style that a page needs for some sections beyond that of every page."""
    plain = all(isinstance(one, _PLAIN) and not one.folded for one in walk(sections))
    plain = plain and not any(isinstance(one, Table) and (one.bars or one.fold_after) for one in walk(sections))
    return "" if plain else "\n".join(map(css, ("colours", "charts", "sections")))


def template(name: str) -> "Template":
    """One of the templates of reports."""
    return environment("vitrail.report").get_template(name)


@cache
def environment(package: str) -> "Environment":
    """Templates of a package's folder templates/; those of reports are found from everywhere."""
    import jinja2  # noqa: PLC0415  (most reports are never written as HTML)
    from markupsafe import Markup  # noqa: PLC0415

    own = dict.fromkeys((package, "vitrail.report"))
    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in own]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.globals |= {
        "section_html": lambda section: Markup(section_html(section)),  # noqa: S704  (a template escaped it)
        "table_cells": table_cells,
        "matrix_cells": matrix_cells,
        "heat_source": heat_source,
        "anchor": anchor,
        "wide": _COLUMNS_WIDE,
    }
    return found


def anchor(title: str) -> str:
    """The id of a section in links: its title with "-" between the words."""
    return "-".join(title.lower().split())


def table_cells(table: Table) -> list[list[Cell]]:
    """The rows of a table as cells; with bars, the first column names its row and shares have a bar."""
    right, units = table.right(), list(table.columns.items())
    rows = []
    for row, cells in zip(table.rows, table.shown(), strict=True):
        made = []
        for place, ((depth, text), (name, unit)) in enumerate(zip(cells, units, strict=True)):
            cls = "number" if right[place] else "long" if len(text) > _LONG and unit == "" else ""
            style = f"padding-left:{1.4 * depth:.1f}em" if depth else ""
            value = row.get(name)
            if table.bars and unit in NUMERIC and isinstance(value, float):
                cls, style = f"{cls} meter", f"--share:{min(max(value, 0.0), 1.0):.3f}"
            made.append(Cell(text, cls, style, heads=table.bars and place == 0))
        rows.append(made)
    return rows


def matrix_cells(matrix: Matrix) -> list[list[Cell]]:
    """The counts of a matrix as cells, the stronger the larger the share of their row."""
    return [
        [_count(matrix, row, column, count, sum(counts)) for column, count in enumerate(counts)]
        for row, counts in enumerate(matrix.counts)
    ]


def _count(matrix: Matrix, row: int, column: int, count: int, total: int) -> Cell:
    if not count:
        return Cell("\N{MIDDLE DOT}", "none")
    share = count / total
    right = row == column or not matrix.square
    strength = share if right else math.sqrt(share)  # mistakes are rare: the root makes them visible
    title = f"{matrix.rows[row]} as {matrix.columns[column]}: {count:,} of {total:,} ({percent(share)})"
    return Cell(f"{count:,}", "right" if right else "wrong", f"--share:{strength:.2f}", title)


def heat_source(matrix: Matrix) -> str:
    """A matrix as a picture with one pixel a count, a PNG as a data URI: the diagonal in blue, the rest in orange."""
    import numpy as np  # noqa: PLC0415

    from vitrail.report.images import data_uri  # noqa: PLC0415

    counts = np.asarray(matrix.counts, dtype=np.float64)  # R C
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    right = np.eye(*counts.shape) > 0 if matrix.square else np.ones(counts.shape, dtype=bool)
    colour = np.where(right[..., None], (58, 124, 196), (226, 108, 40))  # R C 3
    alpha = np.where(counts > 0, np.where(right, 0.15 + 0.85 * shares, np.sqrt(shares)), 0.0)
    pixels = np.concatenate([colour, 255 * alpha[..., None]], axis=2).round().astype(np.uint8)  # R C 4
    return data_uri(pixels.transpose(2, 0, 1))
