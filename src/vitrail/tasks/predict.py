"""Predictions for image files and folders of them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.cache import fit
from vitrail.data.decode import SUFFIXES, decode
from vitrail.errors import BrokenImage, ConfigError
from vitrail.models.backbone import Backbone
from vitrail.tasks.classify import Classify
from vitrail.tasks.task import Task

_WORKERS = 8

Ask = Callable[[Tensor], tuple[Tensor, Tensor]]  # uint8 B C *image_size -> probabilities B K, and `chosen` B K


@dataclass(frozen=True)
class Answer:
    """A class, how likely it is, and whether the task decided for it."""

    label: str
    probability: float
    chosen: bool


@dataclass(frozen=True)
class Prediction:
    """What a model says of one file, the likeliest first; or why nothing can be said."""

    path: str
    answers: tuple[Answer, ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


class _Read(NamedTuple):
    path: Path
    image: Tensor | None = None  # 1 C H W uint8
    error: str | None = None


def as_task(model: Task | Backbone) -> Task:
    """The task itself, or classification by a model, which numbers its classes where it does not know their names."""
    if isinstance(model, Task):
        if not model.classes:
            raise ConfigError(f"{type(model).__name__} reads no labels, so it cannot tell classes apart")
        return model
    if not model.config.num_classes:
        raise ConfigError("the model has no head (num_classes is 0), so it cannot tell classes apart")
    names = model.labels
    task = Classify(model, classes=names or [str(number) for number in range(model.config.num_classes)])
    model.labels = names  # numbers are no names to be kept
    return task


@torch.inference_mode()
def predict(
    model: Task | Backbone,
    paths: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    augment: AugmentConfig | None = None,
    image_size: tuple[int, int] | None = None,
    batch_size: int = 32,
    on_result: Callable[[Prediction], None] | None = None,
) -> list[Prediction]:
    """The `top` likeliest classes of every image file, and of all below every folder, in their order.

    Of several labels an image those that are decided for are named however many there are.
    `augment` is the training's, for its normalisation; `image_size` is the model's where none is given. A file that
    cannot be read has its reason in place of answers. `on_result` hears of each as soon as it is known.
    """
    task = as_task(model)
    config = task.backbone.config
    size = image_size or config.image_size
    prepare = Prepare(augment or AugmentConfig(), image_size=size, channels=config.channels)
    device = next(task.parameters()).device

    def ask(images: Tensor) -> tuple[Tensor, Tensor]:
        found = task.predict(prepare(images.to(device)))
        return found["probabilities"], found["chosen"]

    learning = task.training
    task.eval()
    results: list[Prediction] = []
    try:
        for result in answer_files(
            ask, paths, classes=task.classes, image_size=size, channels=config.channels, top=top, batch_size=batch_size
        ):
            results.append(result)
            if on_result is not None:
                on_result(result)
    finally:
        task.train(learning)
    return results


def answer_files(
    ask: Ask,
    paths: str | Path | Iterable[str | Path],
    *,
    classes: Sequence[str],
    image_size: tuple[int, int],
    channels: int,
    top: int = 5,
    batch_size: int = 32,
) -> Iterator[Prediction]:
    """As `predict`, of anything that can be asked: one prediction after the other."""
    if top < 1:
        raise ConfigError(f"top is {top}; it must be 1 or more")
    for batch in _batches(image_files(paths), image_size, channels, batch_size):
        yield from _answers(ask, batch, classes, top)


def _answers(ask: Ask, batch: Sequence[_Read], classes: Sequence[str], top: int) -> Iterator[Prediction]:
    images = [read.image for read in batch if read.image is not None]
    rows: Iterator[tuple[list[float], list[bool]]] = iter(())
    if images:
        found = ask(torch.cat(images))
        rows = iter(zip(found[0].tolist(), found[1].tolist(), strict=True))
    for read in batch:
        if read.image is None:
            yield Prediction(str(read.path), error=read.error)
            continue
        yield Prediction(str(read.path), likeliest(classes, *next(rows), top=top))


def named_labels(probabilities: Sequence[float], chosen: Sequence[bool], *, top: int) -> list[int]:
    """Which classes of one picture to name: the `top`, the likeliest first, and all others that were decided for."""
    order = sorted(range(len(probabilities)), key=lambda label: -probabilities[label])
    return [*order[:top], *(label for label in order[top:] if chosen[label])]


def likeliest(
    classes: Sequence[str], probabilities: Sequence[float], chosen: Sequence[bool], *, top: int
) -> tuple[Answer, ...]:
    """The classes of one picture that are named, by `named_labels`."""
    best = named_labels(probabilities, chosen, top=top)
    return tuple(Answer(classes[label], probabilities[label], chosen[label]) for label in best)


def _batches(files: Iterator[Path], size: tuple[int, int], channels: int, count: int) -> Iterator[list[_Read]]:
    """Files, decoded side by side, in lists of `count`."""

    def read(path: Path) -> _Read:
        if path.is_dir():
            return _Read(path, error=f"{path} is a folder without images")
        try:
            return _Read(path, fit(decode(path.read_bytes(), name=str(path))[None], size=size, channels=channels))
        except BrokenImage as error:
            return _Read(path, error=str(error))
        except OSError as error:
            return _Read(path, error=f"{path} cannot be read: {error.strerror or error}")

    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting: list[Path] = []
        for path in files:
            waiting.append(path)
            if len(waiting) == count:
                yield list(pool.map(read, waiting))
                waiting = []
        if waiting:
            yield list(pool.map(read, waiting))


def image_files(paths: str | Path | Iterable[str | Path]) -> Iterator[Path]:
    """Files as given, the images below folders in alphabetical order, and folders that hold none."""
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if not path.is_dir():
            yield path
            continue
        empty = True
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(names):
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    empty = False
                    yield Path(folder, name)
        if empty:
            yield path
