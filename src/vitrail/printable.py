"""Text for a terminal: letters that would steer it, or turn the order of others, are written as escapes of JSON.

Names of files and classes come from outside, and a terminal does what is in them: it clears the screen, writes to the
clipboard, shows `exe.png` for `gnp.exe`. JSON says the same with an escape as with the letter.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAKING = re.compile(r"[\t\n]")


def printable(text: str, *, one_line: bool = False) -> str:
    """A text without what steers a terminal; `one_line` without tabs and new lines, too."""
    shown = _STEERING.sub(_escape, text)
    return _BREAKING.sub(_escape, shown) if one_line else shown


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class PrintableStream:
    """A stream that takes texts in their printable form."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # where rich writes, whose colours are of these letters: see `console.py`

    def write(self, text: str) -> int:
        """Writes a text."""
        return self.rich_proxied_file.write(printable(text))

    def writelines(self, lines: Any) -> None:
        """Writes some texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Within the block, standard output and error are printable."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and PrintableStream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
