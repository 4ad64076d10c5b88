"""`vitrail lab`: the list, one experiment, and what is refused."""

import json
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.lab import EXPERIMENTS


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab"]) == 0
    assert "temperature" in capsys.readouterr().out


def test_one_experiment_as_json_and_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "temperature", "--quick", "--seeds", "2", "--results", str(tmp_path / "kept"), "--json"]
    assert main([*words, "--out", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["experiment"] == "temperature"
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_charts_are_in_a_page_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "temperature", "--quick", "--seeds", "1", "--results", str(tmp_path)]
    assert main(words) == 0
    assert "charts: " in capsys.readouterr().out
    assert "<svg" in (tmp_path / "temperature.html").read_text()
    assert main([*words, "--json", "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").is_file()


def test_all_prints_the_verdicts_and_a_line_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [one for one in EXPERIMENTS if one.name in ("temperature", "diagonal-query")]
    monkeypatch.setattr("vitrail.lab.chosen", lambda name: few)
    words = ["lab", "all", "--quick", "--seeds", "1", "--results", str(tmp_path), "--out", str(tmp_path / "all.html")]
    assert main(words) == 0
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.err.splitlines()] == [
        f"{number} of 2, {one.name}" for number, one in enumerate(few, start=1)
    ]
    assert "Verdicts" in said.out
    assert "How it was measured" not in said.out
    assert "How it was measured" in (tmp_path / "all.html").read_text()


def test_the_full_size_on_a_cpu_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "temperature", "--device", "cpu", "--seeds", "1", "--results", str(tmp_path)]
    assert main(words) == 0
    assert "--quick" in capsys.readouterr().err
    assert main([*words, "--quick"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["temprature"], "temperature"),
        (["--quick"], "name"),
        (["temperature", "--quick", "--seeds", "0"], "seeds"),
        (["temperature", "--quick", "--results", __file__], "folder"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *words]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert len(said.splitlines()) == 1
