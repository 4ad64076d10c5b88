"""Folds: every image is predicted once by a model that never saw it; killed anywhere, the same bits come of it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail import evaluate
from vitrail.errors import ConfigError, TrainingError
from vitrail.runs.trained import open_model
from vitrail.training.folds import CrossValidation, train_folds
from vitrail.training.folds.cross_validation import FILE, TABLE, is_folds
from vitrail.training.loop import Loop

TINY: dict[str, Any] = {
    "model": "vit32_small", "image_size": 16, "batch_size": 8, "device": "cpu", "epochs": 2, "silent": True,
    "options": {"dim": 32, "depth": 1, "num_heads": 2, "dropout": 0.0}, "schedule": {"warmup_epochs": 0.5},
    "optimiser": {"lr": 3e-3}, "val": 0.25,
}  # fmt: skip


def make_photos(folder: Path) -> Path:
    """Ten dark photos and 20 light ones, five of a patient."""
    draw = np.random.default_rng(0)
    for number in range(30):
        dark = number % 3 == 0
        file = folder / "photos" / ("dark" if dark else "light") / f"p{number // 5}_{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 150, (16, 16, 3)) + (0 if dark else 80)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder / "photos"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> CrossValidation:
    folder = tmp_path_factory.mktemp("folds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(folder / "cache"))
        return train_folds(make_photos(folder), folds=2, folder=folder / "run", group=r"(p\d+)_", **TINY)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / TABLE).read_text().splitlines()))


def test_every_image_is_in_the_table_once(done: CrossValidation) -> None:
    found = rows(done.folder)
    assert len({row["image"] for row in found}) == len(found) == 30
    folds_of = {row["group"]: set() for row in found}
    for row in found:
        folds_of[row["group"]].add(row["fold"])
    assert all(len(folds) == 1 for folds in folds_of.values())
    right = sum(row["label"] == row["truth"] for row in found)
    assert done.pooled["accuracy"] == pytest.approx(right / 30)


def test_a_group_may_be_in_the_test_split_that_folds_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    photos = make_photos(tmp_path)
    for split, numbers in (("train", range(24)), ("test", range(24, 30))):
        for file in [file for file in photos.glob("*/*.png") if int(file.stem.split("_")[1]) in numbers]:
            moved = tmp_path / "splits" / split / file.parent.name / file.name
            moved.parent.mkdir(parents=True, exist_ok=True)
            file.rename(moved)  # the photos 20 to 24 are of one patient
    options = {**TINY, "epochs": 1}
    found = train_folds(tmp_path / "splits", folds=2, folder=tmp_path / "run", group=r"(p\d+)_", **options)
    assert found.ensemble is not None
    assert "ensemble of 2" in open_model(tmp_path / "run").about
    assert evaluate(tmp_path / "run").metrics["images"] == 6


def test_a_model_never_saw_the_images_that_it_is_judged_by(done: CrossValidation) -> None:
    for fold in done.folds:
        record = fold.model.record
        assert record.wanted.fold == (fold.number, 2)
        assert fold.model.result.metrics["test_accuracy"] == pytest.approx(fold.meter.compute()["accuracy"])


def test_scores_and_report(done: CrossValidation) -> None:
    named = {score.name: score for score in done.scores}
    assert named["accuracy"].mean == pytest.approx(sum(fold.meter.compute()["accuracy"] for fold in done.folds) / 2)
    low, high = named["accuracy"].interval
    assert 0 <= low <= named["accuracy"].mean <= high <= 1
    assert "2 folds" in str(done)
    assert "Ensemble" in done.report().read_text()


def test_killed_in_the_second_fold_and_resumed_the_bits_are_the_same(
    done: CrossValidation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = done.folder.parent / "photos", tmp_path / "run"
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    steps, step = 0, Loop._step

    def killed(self: Loop, parts: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:  # an epoch has one step: the second epoch of the second fold
            raise KeyboardInterrupt
        step(self, parts)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed)
        steps = 2
        with pytest.raises(KeyboardInterrupt):
            train_folds(data, folds=2, folder=folder, group=r"(p\d+)_", **TINY)
    assert not (folder / TABLE).exists()
    told: list[str] = []
    again = train_folds(folder=folder, resume=True, device="cpu", silent=True, say=told.append)
    assert "complete" in told[0]
    assert (folder / TABLE).read_bytes() == (done.folder / TABLE).read_bytes()
    assert again.ensemble is not None
    first, second = open_model(done.folder).task.state_dict(), open_model(folder).task.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_cannot_be_is_refused(tmp_path: Path, done: CrossValidation, monkeypatch: pytest.MonkeyPatch) -> None:
    for folds in (None, 1, 1000):
        with pytest.raises(ConfigError, match="--folds"):
            train_folds("demo", folds=folds, folder=tmp_path / "new")
    with pytest.raises(ConfigError, match="data"):
        train_folds(folds=5)
    with pytest.raises(TrainingError, match="already"):
        train_folds("demo", folds=2, folder=done.folder)
    with pytest.raises(TrainingError, match="resume"):
        train_folds(folder=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="epochs"):
        train_folds(folder=done.folder, resume=True, epochs=3)
    assert is_folds(done.folder)
    (tmp_path / FILE).write_text('{"folds": 3}')
    with pytest.raises(TrainingError, match="damaged"):
        train_folds(folder=tmp_path, resume=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        train_folds("demo", folds=2)


@pytest.mark.parametrize(
    "change",
    [
        {"folds": 2.5},
        {"folds": 10**18},
        {"options": {"folder": "elsewhere"}},
        {"options": {"resume": True}},
        {"options": {"device": "meta"}},
        {"options": {"label": 7}},
        {"options": {"teacher": {"a": 1}}},
        {"options": {"val": [1]}},
        {"options": {"group": "x" * 100_000, "fold": [1, 2]}},
    ],
)
def test_a_setup_that_was_changed_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"version": 1, "data": "demo", "folds": 2, "options": {}} | change))
    with pytest.raises(TrainingError, match="damaged") as error:
        train_folds(folder=tmp_path, resume=True)
    assert len(str(error.value)) < 600
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
