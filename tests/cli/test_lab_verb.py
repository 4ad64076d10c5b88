"""`vitrail lab`: the list, one experiment, and what is refused."""

import json
from pathlib import Path

import pytest

from vitrail.cli import main


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


@pytest.mark.parametrize(
    ("words", "word"),
    [(["temprature"], "temperature"), (["--quick"], "name"), (["temperature", "--quick", "--seeds", "0"], "seeds")],
)
def test_mistakes_are_one_sentence(
    words: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *words]) == 2
    assert word in capsys.readouterr().err
