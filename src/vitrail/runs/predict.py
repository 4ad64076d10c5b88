"""Predictions for files, folders, PIL images, arrays and tensors, by anything that computes a task's outputs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage, ConfigError, DataError, InputError
from vitrail.files import read_bytes
from vitrail.tasks.answer import Answer, Prediction
from vitrail.tasks.task import Task, finite_rows

_WORKERS = 8

Array = np.ndarray[Any, Any]
Input = str | Path | Image.Image | Tensor | Array


class Predictor(Protocol):
    """A trained model, or an exported one: a task that reads its outputs, and what makes its input."""

    @property
    def task(self) -> Task:
        """What outputs mean."""
        ...

    @property
    def preprocess(self) -> Preprocess:
        """What makes the input of images."""
        ...

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs of fitted images, uint8 B C *image_size."""
        ...


class _Read(NamedTuple):
    name: str
    image: Tensor | None = None  # 1 C H W uint8, fitted
    error: str | None = None
    maps: Tensor | None = None  # 2 3: from its pixels to those of the picture
    size: tuple[int, int] = (0, 0)  # of the picture

    @classmethod
    def of(cls, name: str, picture: Tensor, preprocess: Preprocess) -> "_Read":
        fitted, maps = preprocess.fit(picture[None])
        return cls(name, fitted, maps=maps[0], size=(picture.shape[1], picture.shape[2]))


def predict(
    model: Predictor,
    inputs: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int = 32,
    on_result: Callable[[Prediction], None] | None = None,
) -> list[Prediction]:
    """An answer for every image: files, all files below folders, PIL images, arrays H W [C] and tensors C H W, uint8.

    `top` is how many candidates an answer names. A file that cannot be read has its reason in place of an answer.
    `on_result` gets each prediction as soon as it is known.
    """
    if top < 1:
        raise ConfigError(f"top is {top}; it must be 1 or more")
    results: list[Prediction] = []
    for batch in _batches(_inputs(inputs), model.preprocess, batch_size):
        for result in _answered(model, batch, top):
            results.append(result)
            if on_result is not None:
                on_result(result)
    return results


def _answered(model: Predictor, batch: Sequence[_Read], top: int) -> Iterator[Prediction]:
    images = [read.image for read in batch if read.image is not None]
    found = iter(answers(model, torch.cat(images), top=top) if images else ())
    for read in batch:
        if read.image is None or read.maps is None:
            yield Prediction(read.name, error=read.error)
        elif (answer := next(found)) is None:
            yield Prediction(read.name, error=not_finite(model, read.name))
        else:
            yield Prediction(read.name, answer.placed(read.maps, read.size))


def answers(model: Predictor, images: Tensor, *, top: int) -> list[Answer | None]:
    """The answers to fitted images B C *image_size; None where the model computed a number that is not finite."""
    outputs = model.outputs(images)
    finite = finite_rows(outputs)
    kept = [index for index, good in enumerate(finite) if good]
    some = outputs if len(kept) == len(finite) else {name: values[kept] for name, values in outputs.items()}
    found = iter(model.task.decode(some, top=top) if kept else ())
    return [next(found) if good else None for good in finite]


def not_finite(model: object, name: str) -> str:
    """The error of an image that has no answer, since the model computed NaN or infinity."""
    source = getattr(model, "source", "the model")
    return f"{name}: {source} computed numbers that are not finite; its weights are damaged or too large"


def _inputs(inputs: Input | Iterable[Input]) -> Iterator[Input]:
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 4:
        yield from inputs
    elif isinstance(inputs, str | Path | Image.Image | Tensor | np.ndarray):
        yield from image_files(inputs) if isinstance(inputs, str | Path) else (inputs,)
    else:
        for one in inputs:
            yield from _inputs(one)


def _batches(inputs: Iterator[Input], preprocess: Preprocess, count: int) -> Iterator[list[_Read]]:
    """Images, decoded side by side, in lists of `count`."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting: list[tuple[int, Input]] = []
        for item in enumerate(inputs):
            waiting.append(item)
            if len(waiting) == count:
                yield list(pool.map(lambda item: _read(item[0], item[1], preprocess), waiting))
                waiting = []
        if waiting:
            yield list(pool.map(lambda item: _read(item[0], item[1], preprocess), waiting))


def _read(number: int, item: Input, preprocess: Preprocess) -> _Read:
    if not isinstance(item, str | Path):
        return _Read.of(f"image {number}", pixels(item), preprocess)
    path = Path(item)
    if path.is_dir():
        return _Read(str(path), error=f"{path} is a folder without images")
    try:
        return _Read.of(str(path), decode(read_bytes(path), name=str(path)), preprocess)
    except BrokenImage as error:
        return _Read(str(path), error=str(error))
    except OSError as error:
        return _Read(str(path), error=f"{path} cannot be read: {error.strerror or error}")


def pixels(image: Image.Image | Tensor | Array) -> Tensor:
    """An image as uint8 C H W with 1 or 3 channels: from PIL, an array H W [C] or a tensor C H W."""
    if isinstance(image, Image.Image):
        converted = image if image.mode in ("L", "RGB") else image.convert("RGB")
        image = np.asarray(converted)
    if isinstance(image, Tensor):
        found = image.cpu()
    else:
        found = torch.from_numpy(np.array(image))
        found = found[None] if found.ndim == 2 else found.permute(2, 0, 1) if found.ndim == 3 else found  # C H W
    if found.ndim != 3 or found.dtype != torch.uint8 or found.shape[0] not in (1, 3):
        raise InputError(
            f"an image is {found.dtype} of shape {tuple(image.shape)}; it must be uint8: a tensor C H W or an array "
            "H W [C], with 1 or 3 channels"
        )
    return found


def _refuse(error: OSError) -> NoReturn:
    """A folder that cannot be listed is not one without images."""
    raise DataError(f"cannot list {error.filename}: {error.strerror}; check its permissions") from error


def image_files(paths: str | Path | Iterable[str | Path]) -> Iterator[Path]:
    """Files as given, the images below folders in alphabetical order, and folders that hold none."""
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if not path.is_dir():
            yield path
            continue
        empty = True
        for folder, inner, names in os.walk(path, onerror=_refuse):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(names):
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    empty = False
                    yield Path(folder, name)
        if empty:
            yield path
