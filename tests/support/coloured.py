"""A folder of photos that a tiny model learns in seconds, and the run that it leaves."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main

TINY = ["--set", "options.dim=32", "--set", "options.depth=2", "--set", "options.num_heads=2"]
TINY += ["--set", "options.dropout=0", "--set", "schedule.warmup_epochs=0"]


def coloured_photos(folder: Path) -> Path:
    """Three classes that differ in colour alone."""
    chance = np.random.default_rng(0)
    for place, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for number in range(30):
            pixels = chance.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., 2 - place] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def coloured_run(photos: Path, out: Path, *, epochs: int) -> Path:
    """A model that was trained on them by the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(out.parent / "cache"))
        words = ["train", str(photos), "--model", "vit32_small", "--epochs", str(epochs), "--batch-size", "27"]
        assert main([*words, "--lr", "0.003", "--out", str(out), "--device", "cpu", *TINY]) == 0
    return out
