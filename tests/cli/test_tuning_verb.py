"""train --minutes from the command line."""

from pathlib import Path

import pytest
from support.task_data import class_folders

from vitrail.cli import main

SMALL = ["--model", "vit32_small", "--image-size", "16", "--epochs", "1", "--batch-size", "8", "--device", "cpu"]
SMALL += ["--set", "options.dim=32", "--set", "options.depth=1", "--set", "options.num_heads=2", "--val", "0.25"]


def test_a_search_ends_is_used_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    class_folders(tmp_path)
    assert main(["train", "data", "--minutes", "0.01", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "the default was best" in said
    assert "runs/data-tuned/report.html" in said
    assert main(["eval", "runs/data-tuned", "data"]) == 0
    assert main(["train", "--resume", "runs/data-tuned"]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["verify", "runs/data-tuned"]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["data", "--minutes", "0"], "--minutes"), (["data", "--minutes", "soon"], "--minutes"),
        (["data", "--minutes", "5", "--folds", "3"], "--folds"), (["--minutes", "5"], "data"),
        (["data", "--minutes", "5", "--verify-resume", "3"], "--verify-resume"),
        (["data", "--minutes", "5", "--log", "wandb"], "--log"),
        (["--resume", "runs/x", "--minutes", "5"], "--minutes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    options: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *options]) == 2
    assert word in capsys.readouterr().err
