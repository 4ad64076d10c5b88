"""A report: a title and sections that print to a terminal, to JSON and to one HTML file."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import ConsoleOptions, RenderResult
from rich.text import Text as RichText

from vitrail.console import Console
from vitrail.errors import ConfigError, nearest
from vitrail.report import markup, terminal
from vitrail.report.sections import Section, from_data, to_data, walk
from vitrail.strict_json import to_json

_NUMBERS = re.compile(r"\[\n[\s\d,.eE+-]+\]")  # a list of numbers with each on a line of its own


@dataclass(frozen=True, repr=False)
class Report:
    """What a tool found out, ready to print, store and show."""

    title: str
    sections: Sequence[Section]

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.sections)} sections: print it, .to_json() or .to_html())"

    def __getitem__(self, title: str) -> Section:
        for section in walk(self.sections):
            if section.title == title:
                return section
        titles = [section.title for section in walk(self.sections) if section.title]
        raise ConfigError(f"the report has no section {title!r}; {nearest(title, titles)}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield RichText(self.title, style="bold")
        for section in self.sections:
            yield from terminal.render(section, console, options)

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=terminal.WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as captured:
            console.print(self, crop=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def print(self) -> None:
        """Prints to the terminal, in its width and colours."""
        Console().print(self, crop=False)

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON with all digits, also written to `path` where one is given."""
        data = {"title": self.title, "sections": [to_data(section) for section in self.sections]}
        text = to_json(data, indent=2)
        return _written(_NUMBERS.sub(lambda found: re.sub(r"\s+", "", found[0]).replace(",", ", "), text), path)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` turned into text."""
        data = json.loads(text)
        return cls(data["title"], tuple(map(from_data, data["sections"])))

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML file that needs no network, also written to `path` where one is given."""
        return _written(markup.document(self.title, self.sections), path)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        from vitrail.files import write_atomically  # noqa: PLC0415  (it needs torch, and a printed report does not)

        file = Path(path)
        if file.exists() and not file.is_file():  # such as /dev/stdout
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        else:
            write_atomically(file, lambda new: new.write_text(text, encoding="utf-8", errors="backslashreplace"))
    return text
