"""run.json and best.json: written, read again, upgraded from version 1, refused where they are damaged."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folder import NAMES, record, run_folder

from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
from vitrail.errors import CheckpointError, TrainingError
from vitrail.runs.record import VERSION, Record, Result, is_run
from vitrail.runs.trained import open_model
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.mae import MAEConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.training.config import TrainConfig
from vitrail.training.plan import read_plan


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"multi_label": True, "val": 0.2, "source": "photos/", "notes": ("a", "b"), "licence": "MIT"},
        {"task": RegressConfig(safe=("flip",)), "schema": {"numbers": NumbersTarget(names=("age",), safe=("flip",))}},
        {"task": MAEConfig(mask=0.5), "schema": {}, "wanted": Wanted(("age",), ("numbers",))},
        {"preprocess": Preprocess(image_size=(24, 32), channels=1, crop=0.875, interpolation="bilinear")},
    ],
)
def test_what_is_written_is_read(changes: dict[str, Any], tmp_path: Path) -> None:
    written = record(**changes)
    written.write(tmp_path)
    assert Record.read(tmp_path) == written
    assert is_run(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["version"] == VERSION


def test_a_result_is_written_and_read(tmp_path: Path) -> None:
    result = Result(metrics={"accuracy": 0.5}, state={"thresholds": [0.1, 0.9]}).with_test({"accuracy": 0.4})
    result.write(tmp_path)
    assert Result.read(tmp_path) == result
    assert result.metrics == {"accuracy": 0.5, "test_accuracy": 0.4}


def first_version(folder: Path, *, best: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The files that version 1 wrote for a model."""
    run_folder(folder)
    now = json.loads((folder / "run.json").read_text())
    recipe = now["recipe"] | {"label_smoothing": 0.1, "pretrain": None}
    recipe |= {"distill": {"kind": "soft", "weight": 0.4, "temperature": 2.0}}
    recipe["augment"] |= {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}
    for name in ("task", "preprocess"):
        del recipe[name]
    about = {
        "recipe": recipe | changes.pop("recipe", {}), "model": now["model"], "source": "photos/", "learned": "abc",
        "val": 0.1, "start": None, "teacher": None, "taught": False, "classes": list(NAMES), "multi_label": False,
        "notes": ["a note"], "command": "vitrail train photos/", "environment": {"torch": "2.11"},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about | changes))
    (folder / "best.json").write_text(json.dumps(best or {"accuracy": 0.75, "images": 40.0}))
    (folder / "SHA256SUMS").unlink()  # which version 1 did not write
    return folder


def calibrated(folder: Path, best: dict[str, Any]) -> None:
    found = {"temperature": 2.0, "images": 60, "error_before": 0.2, "error_after": 0.1}
    about = {"of": {"best": best, "precision": "float32"}, "calibration": found}
    (folder / "calibration.json").write_text(json.dumps(about))


def test_a_run_of_version_1_is_upgraded(tmp_path: Path) -> None:
    found = Record.read(first_version(tmp_path))
    assert found.version == 1
    assert found.task == ClassifyConfig(label_smoothing=0.1)
    assert found.recipe["task"] == {"kind": "classify", "label_smoothing": 0.1}
    assert found.schema == {"label": ClassTarget(classes=NAMES)}
    assert found.preprocess == Preprocess(image_size=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5))
    assert (found.source, found.val, found.learned, found.notes) == ("photos/", 0.1, "abc", ("a note",))
    assert {"label_smoothing", "pretrain", "distill"}.isdisjoint(found.recipe)
    assert TrainConfig(**{name: value for name, value in found.recipe.items() if name == "seed"}).seed == found.seed
    with pytest.raises(TrainingError, match="--from"):
        read_plan(tmp_path)


def test_its_temperature_is_taken_over_where_it_is_of_this_model(tmp_path: Path) -> None:
    best = {"accuracy": 0.75, "images": 40.0}
    first_version(tmp_path, best=best)
    calibrated(tmp_path, best)
    assert Result.read(tmp_path).metrics == best
    assert open_model(tmp_path).task.temperature.temperature == 2.0
    calibrated(tmp_path, best | {"accuracy": 0.7})
    assert open_model(tmp_path).task.temperature.temperature == 1.0


def test_its_labels_and_thresholds(tmp_path: Path) -> None:
    first_version(tmp_path, multi_label=True, best={"ap": 0.5, "thresholds": [0.25, 0.75]})
    opened = open_model(tmp_path)
    assert opened.task.schema == {"labels": LabelsTarget(classes=NAMES)}
    assert opened.task.thresholds.tolist() == [0.25, 0.75]
    assert opened.result is not None
    assert opened.result.metrics == {"ap": 0.5}


def test_its_pre_training_and_its_teacher(tmp_path: Path) -> None:
    masked = {"kind": "mae", "mask": 0.5, "dim": 32, "depth": 1, "num_heads": 2, "normalise_pixels": True}
    found = Record.read(first_version(tmp_path / "mae", classes=[], recipe={"pretrain": masked}))
    assert (found.task, found.schema) == (MAEConfig(mask=0.5, dim=32, depth=1, num_heads=2), {})
    found = Record.read(first_version(tmp_path / "taught", taught=True, teacher="runs/teacher"))
    assert found.task == ClassifyConfig(label_smoothing=0.1)
    expected = {"kind": "distill", "method": "soft", "weight": 0.4, "temperature": 2.0, "label_smoothing": 0.1}
    assert found.recipe["task"] == expected


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '"a"', "null", '{"version": 2}', '{"recipe": {}}', '{"version": "x"}']
)
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    for name in ("run.json", "best.json"):
        run_folder(tmp_path)
        (tmp_path / name).write_text(text)
        with pytest.raises(CheckpointError, match="damaged"):
            open_model(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": {"label": {"kind": "clas"}}}, {"preprocess": {"crop": 7}}, {"task": {"kind": "classify", "x": 1}},
        {"source": ["a"]}, {"start": 1}, {"licence": {}}, {"val": []}, {"recipe": None}, {"environment": None},
        {"model": []}, {"command": None, "source": 3},
    ],
)  # fmt: skip
def test_damaged_parts_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    run_folder(tmp_path)
    stored = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(stored | change))
    with pytest.raises(CheckpointError, match="damaged"):
        Record.read(tmp_path)


def test_a_recipe_without_a_seed_is_damaged(tmp_path: Path) -> None:
    run_folder(tmp_path, recipe={"epochs": 1})
    for recipe in ({}, {"seed": "x"}, {"seed": None}, {"seed": []}):
        with pytest.raises(CheckpointError, match="seed"):
            _ = replace(Record.read(tmp_path), recipe=recipe).seed


def test_a_state_of_another_task_is_refused(tmp_path: Path) -> None:
    run_folder(tmp_path, Result(metrics={}, state={"thresholds": [0.1, 0.2, 0.3]}), multi_label=True)
    with pytest.raises(CheckpointError, match="damaged"):
        open_model(tmp_path)


def test_what_this_version_does_not_know(tmp_path: Path) -> None:
    written = replace(record(), notes=())
    written.write(tmp_path)
    stored = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(stored | {"version": VERSION + 1}))
    with pytest.raises(CheckpointError, match="upgrade"):
        Record.read(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(stored | {"task": {"kind": "clasify"}}))
    with pytest.raises(CheckpointError, match="'classify'"):
        Record.read(tmp_path)


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        Record.read(tmp_path)
    with pytest.raises(CheckpointError, match=r"best\.json"):
        Result.read(tmp_path)


@pytest.mark.parametrize("number", [10**7, 10**9, 10**18])
@pytest.mark.parametrize("name", ["dim", "depth", "num_heads", "image_size"])
def test_a_record_with_absurd_numbers_is_refused_before_anything_is_built(
    tmp_path: Path, name: str, number: int
) -> None:
    folder = run_folder(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    if name == "image_size":
        about["preprocess"][name] = [number, number]
    else:
        about["task"] = {"kind": "mae", name: number}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=name):
        open_model(folder)


def test_an_undefined_metric_is_null_and_comes_back(tmp_path: Path) -> None:
    Result(metrics={"correlation": math.nan, "images": 3.0}).write(tmp_path)
    assert (
        json.loads((tmp_path / "best.json").read_text(), parse_constant=pytest.fail)["metrics"]["correlation"] is None
    )
    assert math.isnan(Result.read(tmp_path).metrics["correlation"])
