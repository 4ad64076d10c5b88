"""Predictions for files, folders, PIL images, arrays and tensors, by anything that computes a task's outputs."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage, ConfigError, DataError, InputError
from vitrail.files import read_bytes
from vitrail.runs.drawings import Drawings
from vitrail.runs.predictor import Predictor, whole_pictures
from vitrail.runs.tiled import NotFinite, find_in_tiles
from vitrail.tasks.answer import Answer, Prediction
from vitrail.tasks.task import finite_rows

_WORKERS = 8
FEW = 4  # pictures at their own size in memory

Array = np.ndarray[Any, Any]
Input = str | Path | Image.Image | Tensor | Array


class Asked(NamedTuple):
    """What is asked of a model: how many candidates, tiles of so many pixels, and drawings of the answers."""

    top: int = 5
    tile: int | None = None
    drawings: Drawings | None = None

    def keeps_pictures(self, model: Predictor) -> bool:
        """Whether pictures are needed at their own size."""
        return self.tile is not None or self.drawings is not None or whole_pictures(model) is not None


class Read(NamedTuple):
    """An image at the size of a model with its place in the picture, or the reason why there is none."""

    name: str
    image: Tensor | None = None  # 1 C H W uint8, fitted
    error: str | None = None
    maps: Tensor | None = None  # 2 3: from its pixels to those of the picture
    size: tuple[int, int] = (0, 0)  # of the picture
    picture: Tensor | None = None  # C H W uint8, where it is needed

    @classmethod
    def of(cls, name: str, picture: Tensor, preprocess: Preprocess, *, keep: bool = False) -> "Read":
        """Of a picture, uint8 C H W; `keep` keeps it."""
        fitted, maps = preprocess.fit(picture[None])
        size = (picture.shape[1], picture.shape[2])
        return cls(name, fitted, maps=maps[0], size=size, picture=picture if keep else None)

    @classmethod
    def of_file(cls, name: str, file: Path, load: Callable[[], bytes], preprocess: Preprocess, *, keep: bool) -> "Read":
        """Of what is read from a file."""
        if file.is_dir():
            return cls(name, error=f"{name} is a folder without images")
        try:
            return cls.of(name, decode(load(), name=name), preprocess, keep=keep)
        except BrokenImage as error:
            return cls(name, error=str(error))
        except OSError as error:
            return cls(name, error=f"{name} cannot be read: {error.strerror or error}")


def predict(
    model: Predictor,
    inputs: Input | Iterable[Input],
    *,
    top: int = 5,
    tile: int | None = None,
    draw: str | Path | None = None,
    batch_size: int = 32,
    on_result: Callable[[Prediction], None] | None = None,
) -> list[Prediction]:
    """An answer for every image: files, all files below folders, PIL images, arrays H W [C] and tensors C H W, uint8.

    `top` is how many candidates an answer names. A file that cannot be read has its reason in place of an answer.
    `tile` finds boxes in large pictures, in tiles of so many pixels. `draw` writes pictures with their answers: a file
    for one picture, or a folder. `on_result` gets each prediction as soon as it is known.
    """
    if top < 1:
        raise ConfigError(f"top is {top}; it must be 1 or more")
    some, drawings = _inputs(inputs), None
    if draw is not None:
        every = list(some)
        names = [str(one) if isinstance(one, str | Path) else f"image {number}" for number, one in enumerate(every)]
        some, drawings = iter(every), Drawings(draw, names)
    asked = Asked(top, tile, drawings)
    results: list[Prediction] = []
    for batch in _batches(some, model, batch_size, asked):
        for result in answered(model, batch, asked):
            results.append(result)
            if on_result is not None:
                on_result(result)
    return results


def answered(model: Predictor, batch: Sequence[Read], asked: Asked) -> Iterator[Prediction]:
    """An answer for each image, in pixels of its picture, or the reason why there is none."""
    by = _of_images if whole_pictures(model) is None else _of_pictures
    found = (by if asked.tile is None else _of_tiles)(model, batch, asked)
    for read, result in zip(batch, found, strict=True):
        if asked.drawings is not None and result.answer is not None and read.picture is not None:
            asked.drawings.write(read.name, read.picture, result.answer)
        yield result


def _of_images(model: Predictor, batch: Sequence[Read], asked: Asked) -> Iterator[Prediction]:
    images = [read.image for read in batch if read.image is not None]
    found = iter(answers(model, torch.cat(images), top=asked.top) if images else ())
    for read in batch:
        if read.image is None or read.maps is None:
            yield Prediction(read.name, error=read.error)
        elif (answer := next(found)) is None:
            yield Prediction(read.name, error=not_finite(model, read.name))
        else:
            yield Prediction(read.name, answer.placed(read.maps, read.size))


def _of_pictures(model: Predictor, batch: Sequence[Read], asked: Asked) -> Iterator[Prediction]:
    """Each picture at a size of its own; answers are in its pixels already."""
    reader = whole_pictures(model)
    assert reader is not None  # noqa: S101  (the caller looked)
    refused = [None if read.picture is None else reader.refusal(read.picture) for read in batch]
    some = [read.picture for read, reason in zip(batch, refused, strict=True) if reason is None]
    found = iter(reader.outputs([picture for picture in some if picture is not None]))
    for read, reason in zip(batch, refused, strict=True):
        if read.picture is None:
            yield Prediction(read.name, error=read.error)
        elif reason is not None:
            yield Prediction(read.name, error=f"{read.name}: {reason}")
        elif not all(finite_rows(outputs := next(found))):
            yield Prediction(read.name, error=not_finite(model, read.name))
        else:
            yield Prediction(read.name, model.task.decode(outputs, top=asked.top)[0])


def _of_tiles(model: Predictor, batch: Sequence[Read], asked: Asked) -> Iterator[Prediction]:
    for read in batch:
        if read.picture is None or asked.tile is None:
            yield Prediction(read.name, error=read.error)
            continue
        try:
            yield Prediction(read.name, find_in_tiles(model, read.picture, asked.tile))
        except NotFinite:
            yield Prediction(read.name, error=not_finite(model, read.name))


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


def _inputs(inputs: object) -> Iterator[Input]:
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 4:
        yield from inputs
    elif isinstance(inputs, str | Path | Image.Image | Tensor | np.ndarray):
        yield from image_files(inputs) if isinstance(inputs, str | Path) else (inputs,)
    elif isinstance(inputs, Iterable) and not isinstance(inputs, bytes):
        for one in inputs:
            yield from _inputs(one)
    else:
        raise InputError(
            f"an image cannot be of type {type(inputs).__name__}; give paths, folders, PIL images, arrays H W [C] or "
            "tensors C H W"
        )


def _batches(inputs: Iterator[Input], model: Predictor, count: int, asked: Asked) -> Iterator[list[Read]]:
    """Images, decoded side by side, in lists of `count`, or of a few where whole pictures are kept."""
    keep = asked.keeps_pictures(model)
    numbered = enumerate(inputs)
    with ThreadPoolExecutor(_WORKERS) as pool:
        while some := list(islice(numbered, min(count, FEW) if keep else count)):
            yield list(pool.map(lambda item: _read(item[0], item[1], model.preprocess, keep=keep), some))


def _read(number: int, item: Input, preprocess: Preprocess, *, keep: bool) -> Read:
    if not isinstance(item, str | Path):
        return Read.of(f"image {number}", pixels(item), preprocess, keep=keep)
    path = Path(item)
    return Read.of_file(str(path), path, lambda: read_bytes(path), preprocess, keep=keep)


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
