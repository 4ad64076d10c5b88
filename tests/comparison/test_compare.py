"""A comparison of runs from Python and from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.compared_runs import made_run

import vitrail
from vitrail.cli import main
from vitrail.comparison.compare import Comparison
from vitrail.comparison.page import sentences
from vitrail.errors import ConfigError

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> Comparison:
    return vitrail.compare(*runs, resamples=20, device="cpu")


def test_results_are_those_of_evaluation(found: Comparison, runs: list[Path], data: Path) -> None:
    for run, values in zip(runs, found.found.values, strict=True):
        expected = vitrail.evaluate(run, data).metrics
        assert values[("accuracy", "")] == expected["accuracy"]
        assert values[("nll", "")] == pytest.approx(expected["nll"])


def test_mcnemar_decides_for_accuracy(found: Comparison) -> None:
    (pair,) = found.found.pairs
    assert pair.discordant is not None
    assert pair.best.p == pair.discordant.p
    change = pair.discordant.second - pair.discordant.first
    assert pair.best.value == pytest.approx(change / pair.discordant.images)


def test_three_runs_have_three_pairs(runs: list[Path], data: Path, tmp_path: Path) -> None:
    third = made_run(tmp_path / "third", data, seed=2, recipe={"seed": 2})
    many = vitrail.compare(*runs, third, resamples=20, device="cpu").found
    assert [(pair.first, pair.second) for pair in many.pairs] == [(0, 1), (0, 2), (1, 2)]
    assert all(pair.best.corrected >= pair.best.p for pair in many.pairs)
    assert list(many.parts) == [1, 2]
    assert ["seed" in told for told in sentences(many)] == [False, True, False]  # the second has another rate
    more = replace(many, runs=[*many.runs] * 2, values=[*many.values] * 2)
    assert "other 1 pair" in " ".join(sentences(more))  # of the pairs, two are with the best run


def test_a_run_with_fewer_epochs_than_it_was_to_have_is_named(runs: list[Path], data: Path, tmp_path: Path) -> None:
    short = made_run(tmp_path / "short", data, recipe={"epochs": 60})
    whole = made_run(tmp_path / "whole", data, recipe={"epochs": 2})
    text = " ".join(str(vitrail.compare(runs[0], short, whole, resamples=20, device="cpu").report()).split())
    assert "short has 2 of 60 epochs" in text
    assert "whole has" not in text


def test_what_chance_changes_is_named(runs: list[Path], data: Path, tmp_path: Path) -> None:
    second = made_run(tmp_path / "second", data, seed=2, recipe={"seed": 2})
    threads = made_run(tmp_path / "threads", data, seed=2, recipe={"seed": 2}, environment={"threads": 2})

    def told(*folders: Path) -> str:
        return " ".join(str(vitrail.compare(*folders, resamples=20, device="cpu").report()).split())

    assert "seed alone" in told(runs[0], second)
    both = told(runs[0], threads)
    assert "seed alone" not in both
    assert "seed and the number of threads alone" in both
    assert "same settings" in told(runs[0], made_run(tmp_path / "again", data))
    assert "differ in the number of threads alone" in told(runs[1], second, threads)


def test_it_is_short_in_a_notebook(found: Comparison) -> None:
    assert repr(found).startswith("Comparison(")
    assert len(repr(found)) < 200


def test_too_few_resamples_are_refused(runs: list[Path]) -> None:
    with pytest.raises(ConfigError, match="resamples"):
        vitrail.compare(*runs, resamples=0, device="cpu")


def test_the_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "compare.html"
    words = ["compare", *map(str, runs), "--resamples", "20", "--device", "cpu"]
    assert main([*words, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "Settings that differ" in shown
    assert "optimiser.lr" in shown
    assert "<svg" in page.read_text()
    assert main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["settings"]["optimiser.lr"] == {"plain": "0.001", "slow": "0.0001"}
    assert [run["name"] for run in plain["runs"]] == ["plain", "slow"]
    assert main(["compare", str(runs[0])]) == 2
