"""A run that is over, opened again: its model with the way its images are prepared; and what training would cost."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from vitrail.config import from_dict
from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.doctor import Cost
from vitrail.models.checkpoint import load
from vitrail.profiling import describe, sketch
from vitrail.report import Facts
from vitrail.tasks.classify import Classify
from vitrail.tasks.predict import as_task
from vitrail.tasks.task import Task

_ADAM = 4  # weights, gradients and two moments


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A task ready for use, and the treatment that its training gave images."""

    task: Task
    augment: AugmentConfig
    multi_label: bool

    @property
    def prepare(self) -> Prepare:
        """Makes the model's input of uint8 images."""
        config = self.task.backbone.config
        return Prepare(self.augment, image_size=config.image_size, channels=config.channels)


def open_trained(source: str | Path) -> Trained:
    """The best model of a run's folder, with its classes, thresholds and normalisation; or a checkpoint, with ours."""
    model = load(source)
    about = Path(source) / "run.json"
    if not about.is_file():
        return Trained(task=as_task(model).eval(), augment=AugmentConfig(), multi_label=False)
    run = json.loads(about.read_text(encoding="utf-8"))
    best = json.loads((Path(source) / "best.json").read_text(encoding="utf-8"))
    task = Classify(model, classes=run["classes"], multi_label=run["multi_label"], thresholds=best.get("thresholds"))
    augment = from_dict(AugmentConfig, run["recipe"]["augment"])
    return Trained(task=task.eval(), augment=augment, multi_label=run["multi_label"])


class TrainingCost(NamedTuple):
    """What the doctor is told of a model."""

    numbers: Cost
    image_size: tuple[int, int]


def training_cost(name: str, image_size: int | tuple[int, int] | None = None) -> TrainingCost:
    """The memory that training a named model takes on this machine: fixed, and for each image."""
    model = sketch(name) if image_size is None else sketch(name, image_size=image_size)
    totals = describe(model)["Totals"]
    assert isinstance(totals, Facts)  # noqa: S101  (describe writes it so)
    weights, activations = (int(totals.values[key] or 0) for key in ("weights", "activations"))
    if torch.cuda.is_available():
        memory = torch.cuda.mem_get_info()[1]
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = Cost(model=name, fixed=_ADAM * weights, per_image=activations, memory=memory)
    return TrainingCost(numbers, model.config.image_size)
