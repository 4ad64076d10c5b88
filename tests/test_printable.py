"""What comes from outside cannot steer the terminal that it is printed to."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail.cli import main
from vitrail.printable import printable, printable_output

CLEARS, COPIES, TURNS = "\x1b[2J", "\x1b]52;c;aGk=\x07", "\u202egnp.exe"


def test_letters_that_steer_are_escaped_and_others_are_not() -> None:
    assert printable(f"a{CLEARS}b{COPIES}") == "a\\u001b[2Jb\\u001b]52;c;aGk=\\u0007"
    assert printable("été 日本 🐈 [red]\n\ttwo") == "été 日本 🐈 [red]\n\ttwo"
    assert printable("a\nb\tc", one_line=True) == "a\\u000ab\\u0009c"
    for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0x2028):
        assert printable(chr(code)) == f"\\u{code:04x}"


def test_json_stays_the_same() -> None:
    value = {"name": "a\x7f\x9b" + TURNS + CLEARS}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_everything_that_is_printed_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_output():
        print(CLEARS, TURNS)
        print(COPIES, file=sys.stderr)
        sys.stdout.writelines([CLEARS, "\n"])
        assert sys.stdout.isatty() is False
    seen = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e"} & set(seen.out + seen.err)
    assert seen.out.startswith("\\u001b[2J")


def test_streams_are_given_back_and_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", None)
    with printable_output():
        assert sys.stderr is None
    assert sys.stdout is output


def test_an_error_names_a_hostile_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["predict", str(tmp_path / f"{CLEARS}{TURNS}.png")]) == 2
    assert "\\u001b[2J" in capsys.readouterr().err


def test_only_our_own_console_is_used() -> None:
    for file in Path(vitrail.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        if any(isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console") for node in nodes):
            named = [one for one in nodes if isinstance(one, ast.ImportFrom)]
            assert [one.module for one in named if any(alias.name == "Console" for alias in one.names)] == [
                "vitrail.console"
            ], file
