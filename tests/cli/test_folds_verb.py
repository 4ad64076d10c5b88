"""train --folds and --group from the command line."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main

SMALL = ["--model", "vit32_small", "--image-size", "16", "--epochs", "1", "--batch-size", "8", "--device", "cpu"]
SMALL += ["--set", "options.dim=32", "--set", "options.depth=1", "--set", "options.num_heads=2", "--val", "0.25"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """24 photos of six patients."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    draw, rows = np.random.default_rng(0), ["path,label,patient"]
    for number in range(24):
        pixels = draw.integers(0, 150, (16, 16, 3)) + 80 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'dark' if number % 2 == 0 else 'light'},{number // 4}")
    (tmp_path / "photos.csv").write_text("\n".join(rows))
    return tmp_path / "photos.csv"


def test_folds_are_trained_resumed_and_used(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "photos.csv", "--group", "patient", "--folds", "2", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "an ensemble of 2" in said
    assert "runs/photos-2fold/report.html" in said
    assert main(["train", "--resume", "runs/photos-2fold"]) == 0
    assert "complete" in capsys.readouterr().out
    assert main(["predict", "runs/photos-2fold", "0.png"]) == 0
    assert "0.png: " in capsys.readouterr().out
    assert main(["eval", "runs/photos-2fold", "photos.csv", "--tta", "flip"]) == 0
    assert "test-time flip" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--folds", "1"], "--folds"), (["--folds", "9"], "folds"), (["--group", "patent"], "--group"),
        (["--folds", "2", "--verify-resume", "3"], "--verify-resume"), (["--sampling", "even"], "sampling"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(
    table: Path, capsys: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    assert main(["train", str(table), "--group", "patient", *SMALL, *options]) == 2
    assert word in capsys.readouterr().err
