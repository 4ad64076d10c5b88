"""Folders as runs leave them, without training: records, results and models with random weights."""

from pathlib import Path
from typing import Any

import vitrail
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget, LabelsTarget
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.runs.record import Record, Result
from vitrail.tasks.classify import ClassifyConfig
from vitrail.training.config import TrainConfig, change

TINY = {"dim": 32, "depth": 1, "num_heads": 2, "num_classes": 2}
NAMES = ("cat", "dog")


def record(*, recipe: dict[str, Any] | None = None, multi_label: bool = False, **changes: Any) -> Record:
    """The record of a classifier of cats and dogs; keywords replace its fields."""
    task = ClassifyConfig()
    config = change(TrainConfig(), {"model": "vit32_small", "task": task, **(recipe or {})})
    kind = LabelsTarget if multi_label else ClassTarget
    fields = {
        "recipe": to_dict(config),
        "model": {"family": "vit", "config": {}},
        "task": task,
        "schema": {kind.field: kind(classes=NAMES)},
        "preprocess": Preprocess(image_size=(32, 32), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)),
    }
    return Record(**{**fields, **changes})


def run_folder(folder: Path, result: Result | None = None, **changes: Any) -> Path:
    """A folder with a tiny model, its record and its result."""
    model = vitrail.create("vit32_small", **TINY)
    model.labels = NAMES
    vitrail.save(model, folder)
    about = {name: value for name, value in describe_model(model).items() if name in ("family", "config")}
    record(**{"model": about, **changes}).write(folder)
    (result or Result(metrics={"accuracy": 0.75, "images": 8.0})).write(folder)
    return folder
