"""Cells of CSV that a spreadsheet does not run as formulas (OWASP, CSV injection); what is read back is unchanged.

A text that begins with = + - @ (full-width ones, too) or a control character gets an apostrophe in front, unless it is
a number. So does a text that has apostrophes before such a sign, so that reading can tell them apart.
"""

import re
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf", re.ASCII)


def safe_cell(value: Any) -> Any:
    """A value as it is written: numbers and harmless texts as they are."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def plain_cell(cell: str) -> str:
    """The text of a cell that `safe_cell` wrote."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
