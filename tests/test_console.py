"""What rich prints: texts are printable, also beside a moving bar, and styles are rich's."""

import io
import sys

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vitrail.console import Console
from vitrail.printable import printable_output
from vitrail.report import Report
from vitrail.report import Table as Rows
from vitrail.report import Text as Words

HOSTILE = "evil\x1b]0;pwned\x07\x1b[31m\x9b2J\u202egnp"


def test_texts_are_printable_and_styles_are_written() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=200)
    table = Table("name")
    table.add_row(Text(HOSTILE, style="red"))
    console.print(table)
    console.print(HOSTILE, markup=False, highlight=False)
    assert "\x1b[31mevil" in file.getvalue()  # rich's own red
    for letter in "\x07\x9b\u202e":
        assert letter not in file.getvalue()
    assert file.getvalue().count("\\u001b]0;pwned") == 2


def test_a_bar_moves_beside_printable_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(sys, "stdout", file)
    with printable_output():
        console = Console(stderr=True, force_terminal=True, width=80)
        with Progress(console=console) as bar:
            bar.add_task(Text(HOSTILE).plain, total=2)
            print(HOSTILE)
    assert "\x1b[?25l" in file.getvalue()  # rich hides the cursor
    assert "\\u001b]0;pwned" in file.getvalue()
    assert not {"\x07", "\x9b", "\u202e"} & set(file.getvalue())


def test_reports_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(HOSTILE, (Words(HOSTILE, HOSTILE), Rows("t", {HOSTILE: ""}, [{HOSTILE: HOSTILE}])))
    report.print()
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown + str(report))
