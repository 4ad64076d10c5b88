"""Models that a verb looks into: runs, checkpoints, the packaged one, and names; at any size, with a head or not."""

import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.errors import Notice
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.registry import create, presets
from vitrail.packaged import NAME as PACKAGED
from vitrail.tasks.predict import as_task
from vitrail.tasks.task import Task
from vitrail.training.normalisation import normalisation_of
from vitrail.training.trained import open_trained, place_of

Size = int | tuple[int, int]


class OpenedModel(NamedTuple):
    """A model, and what makes its input of uint8 images."""

    model: Backbone
    prepare: Prepare


class OpenedTask(NamedTuple):
    """A model that tells classes apart, what makes its input, and a sentence on it."""

    task: Task
    prepare: Prepare
    about: str


def is_name(source: str) -> bool:
    """Whether a source is the name of a model of `vitrail models`, and no file or folder."""
    return source in presets() and not Path(source).exists()


def open_model(source: str, *, image_size: Size | None = None) -> OpenedModel:
    """The model of a source; images are normalised as in its training, where a file tells how."""
    if is_name(source):
        return _prepared(_fresh(source, image_size), AugmentConfig(), None)
    place = place_of(source)
    model, known = load(place), normalisation_of(place)
    return _prepared(model, AugmentConfig() if known is None else AugmentConfig(**known._asdict()), image_size)


def open_task(source: str, *, image_size: Size | None = None) -> OpenedTask:
    """The model of a source with its classes."""
    if is_name(source):
        model, prepare = open_model(source, image_size=image_size)
        return OpenedTask(as_task(model).eval(), prepare, f"{source}: {type(model).__name__} with random weights")
    trained = open_trained(source)
    if source == PACKAGED:
        warnings.warn(f"the model is {trained.about}", Notice, stacklevel=1)
    _, prepare = _prepared(trained.task.backbone, trained.augment, image_size)
    return OpenedTask(trained.task, prepare, trained.about)


def _fresh(name: str, image_size: Size | None) -> Backbone:
    """The model at its own size or another: built for it, as there are no weights that would have to fit."""
    warnings.warn(
        f"{name} is the name of a model: its weights are random (seed 0), so what is shown is how it is built, "
        "not what it learned",
        Notice,
        stacklevel=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return create(name, **({} if image_size is None else {"image_size": image_size})).eval()


def _prepared(model: Backbone, augment: AugmentConfig, image_size: Size | None) -> OpenedModel:
    if image_size is not None:
        model.resize(image_size)
    config = model.config
    return OpenedModel(model, Prepare(augment, image_size=config.image_size, channels=config.channels))
