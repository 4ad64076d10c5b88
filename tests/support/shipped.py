"""Tiny trained models of every task that can be exported, and images to compare them on."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.registered import tiny
from support.small_tasks import CLASSES, classifier, regressor
from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.engine import Engine
from vitrail.runs.record import Record
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.task import Task

NUMBERS = ("age", "angle")
NUMBERS_STATE = {
    "mean": [40.0, -0.2],
    "std": [12.0, 0.5],
    "span": [[18.0, 90.0], [-1.5, 1.5]],
    "margin": [9.0, 0.4],
    "calibrated_on": 60,
}
RECIPE = {"model": "vit_tiny_patch16", "epochs": 3, "seed": 0}


def trained(
    name: str = "vit_tiny_patch16", *, kind: str = "class", record: bool = False, preprocess: Any = None, **changes: Any
) -> TrainedModel:
    """A tiny model with random weights for "class", "labels" or "numbers"; `preprocess` has other options of it."""
    torch.manual_seed(0)
    model = tiny(name, **changes, **({"num_classes": 2} if kind == "numbers" else {}))
    channels = model.config.channels
    usual = {"mean": (0.4, 0.5, 0.6)[:channels], "std": (0.2, 0.3, 0.25)[:channels]}
    made = Preprocess(image_size=model.config.image_size, channels=channels, **{**usual, **(preprocess or {})})
    task = task_of(kind, model).eval()
    return TrainedModel(
        source="runs/tiny",
        backbone=model,
        preprocess=made,
        head=task,
        record=_record(task, made) if record else None,
    )


def task_of(kind: str, model: Any) -> Task:
    """The task of a model, with a state as validation leaves it."""
    if kind == "numbers":
        task: Task = regressor(NUMBERS, model)
        task.load_state(NUMBERS_STATE)
        return task
    thresholds = (0.2, 0.4, 0.5, 0.6, 0.8) if kind == "labels" else None
    task = classifier(model, multi_label=kind == "labels", thresholds=thresholds)
    if kind == "class":
        task.load_state({"temperature": {"temperature": 2.0, "images": 60, "error_before": 0.2, "error_after": 0.1}})
    return task


def _record(task: Task, preprocess: Preprocess) -> Record:
    return Record(
        recipe=RECIPE, model={}, task=task.config, schema=task.schema, preprocess=preprocess, licence="CC0-1.0"
    )


def outputs(engine: Engine, images: Any) -> dict[str, torch.Tensor]:
    """What an engine computes for images of any size."""
    return engine.outputs(engine.fitted(images))


def first(outputs: Any) -> Any:
    """The outputs that others are made of: logits, or numbers."""
    return next(iter(outputs.values()))


def photos(count: int, *, channels: int = 3) -> list[Tensor]:
    """Smooth images uint8 C H W, each of another size."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for number in range(count):
        coarse = torch.rand(1, channels, 4, 5, generator=draw)
        size = (40 + 3 * (number % 5), 30 + 7 * (number % 4))
        smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[0]
        found.append((255 * smooth).to(torch.uint8))
    return found


class Skewed(Engine):
    """Gives the outputs of another engine, with something added to the first of them."""

    backend = "skewed"

    def __init__(self, other: Engine, add: object) -> None:
        super().__init__("nowhere.onnx", other.card)
        self.other, self.add = other, np.asarray(add, np.float32)

    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = self.other.run(images)
        name = next(iter(outputs))
        return outputs | {name: outputs[name] + self.add}


LABELS = CLASSES
