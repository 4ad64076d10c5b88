"""Opening runs to compare: names, histories, and what cannot be compared."""

from pathlib import Path

import pytest
import torch
from support.compared_runs import made_run
from support.run_folder import record

from vitrail.comparison.opened import check_alike, open_runs, read_history, short_names
from vitrail.data.targets import ClassTarget, NumbersTarget
from vitrail.errors import CheckpointError, ConfigError, Notice
from vitrail.tasks.regress import RegressConfig

CPU = torch.device("cpu")


def test_runs_are_named_by_their_folders(runs: list[Path]) -> None:
    found = open_runs(runs, device=CPU)
    assert [run.name for run in found] == ["plain", "slow"]
    assert found[0].history[1]["train/loss"] == 0.5
    assert short_names([Path("a/run"), Path("b/run")]) == ["a/run", "b/run"]


def test_one_run_or_the_same_twice_is_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two runs"):
        open_runs(runs[:1], device=CPU)
    with pytest.raises(ConfigError, match="twice"):
        open_runs([runs[0], runs[0]], device=CPU)
    with pytest.raises(CheckpointError, match="not a run"):
        open_runs([runs[0], tmp_path], device=CPU)


def test_a_folder_that_is_not_a_run_is_left_out_of_many(runs: list[Path], tmp_path: Path) -> None:
    with pytest.warns(Notice, match="run.json"):
        found = open_runs([*runs, tmp_path], device=CPU)
    assert len(found) == len(runs)
    with pytest.raises(CheckpointError, match="not a run"):
        open_runs([*runs, tmp_path / "misspelt"], device=CPU)


def test_other_tasks_and_classes_are_refused() -> None:
    numbers = {"numbers": NumbersTarget(names=("x",))}
    with pytest.raises(ConfigError, match="regress"):
        check_alike("a", record(), "b", record(task=RegressConfig(), schema=numbers))
    with pytest.raises(ConfigError, match="'bird'"):
        check_alike("a", record(), "b", record(schema={"label": ClassTarget(classes=("bird", "cat"))}))
    check_alike("a", record(), "b", record(schema={"label": ClassTarget(classes=("dog", "cat"))}))


def test_a_damaged_history_is_refused(data: Path, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", data)
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_history(run)
    (run / "metrics.jsonl").unlink()
    assert read_history(run) == []
