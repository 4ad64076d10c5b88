"""Real images for export and benchmark: those that were named, those of the run, or those of the package."""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.decode import decode
from vitrail.data.sources.arrays import looks_like_arrays
from vitrail.data.sources.catalogue import KNOWN
from vitrail.data.sources.cifar import looks_like_cifar
from vitrail.data.sources.embedded import read_embedded
from vitrail.data.sources.opening import ANY, find, open_whole
from vitrail.data.sources.positions import read_positions
from vitrail.data.sources.shards import find_shards
from vitrail.data.sources.table import Wanted
from vitrail.data.split import align
from vitrail.errors import BrokenImage, ConfigError, DataError, Notice
from vitrail.files import read_bytes
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import packaged_folder, samples
from vitrail.runs.predict import image_files
from vitrail.runs.record import Record, is_run
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.task import Task


def read_images(source: str, count: int, *, wanted: Wanted = ANY) -> list[Tensor]:
    """Up to `count` images uint8 C H W, spread evenly over a folder, or over data that `vitrail train` takes."""
    if count < 1:
        raise ConfigError(f"--count {count} is not allowed: must be 1 or more")
    if not Path(source).is_dir() or _is_packed(Path(source)) or read_positions(Path(source)) is not None:
        data = open_whole(source, wanted=wanted)  # and not the masks beside images
        return [data.read(index) for index in _spread(len(data), count)]
    files = [path for path in image_files(source) if path.is_file()]
    found = []
    for index in _spread(len(files), count):
        with contextlib.suppress(BrokenImage):  # a folder of photographs may have some
            found.append(decode(read_bytes(files[index]), name=str(files[index])))
    if not found:
        raise DataError(f"{source} has no images that can be read")
    return found


class ExportImages(NamedTuple):
    """Images uint8 C H W for the certificate and for int8, and the targets of the latter where they have some."""

    certificate: Sequence[Tensor]
    int8: Sequence[Tensor] | None = None
    truth: Mapping[str, Tensor] | None = None  # in pixels of the model's input


def images_for_export(
    trained: TrainedModel, *, images: str | None = None, int8: str | None = None, count: int = 200
) -> ExportImages:
    """Images for the certificate, and others that calibrate int8, never the same; `images` and `int8` name them.

    Without `images`, the certificate has half of those of `int8`, or the run's own data; the packaged model has some.
    For tasks whose metric decides about int8, labels of these images are read, too.
    """
    if int8 is not None:
        found, truth = _labelled(trained, int8, count if images is not None else 2 * count)
        if images is not None:
            return ExportImages(read_images(images, count), found, truth)
        truth = None if truth is None else {name: values[::2] for name, values in truth.items()}
        return ExportImages(found[1::2], found[::2], truth)
    if images is not None:
        return ExportImages(read_images(images, count))
    if trained.source == PACKAGED:
        return ExportImages(read_images(str(packaged_folder() / "samples"), count))
    if trained.record is None or trained.record.source is None:
        raise ConfigError(f"{trained.source} does not say what it was trained on; give images: --images photos/")
    return ExportImages(read_images(trained.record.source, count, wanted=trained.record.wanted))


def _labelled(trained: TrainedModel, source: str, count: int) -> tuple[list[Tensor], dict[str, Tensor] | None]:
    """Images of the validation part, else of the test part, with their targets; without these where there are none."""
    task, preprocess = trained.task, trained.preprocess
    if task.int8_loss is None:
        return read_images(source, count), None
    try:
        found = find(source, wanted=Wanted((), task.config.target_kinds))
        data = align(found.val or found.test or found.train, task.schema)
    except DataError as error:
        text = f"{source} has no labels that fit the model, so int8 is judged by its answers alone ({error})"
        warnings.warn(text, Notice, stacklevel=3)
        return read_images(source, count), None
    images: list[Tensor] = []
    values: dict[str, list[Tensor]] = {name: [] for name in task.schema}
    for index in _spread(len(data), count):
        images.append(data.read(index))
        maps = preprocess.fit(images[-1][None])[1]
        for name, target in task.schema.items():
            value = target.load(data.targets[name][index])[None]
            values[name].append(target.move(value, maps, preprocess.image_size))
    return images, {name: torch.cat(each) for name, each in values.items()}


def images_for_bench(
    sources: Sequence[str], task: Task, *, images: str | None = None, count: int = 100
) -> list[Tensor]:
    """Images that suit a model: those named, else those of a run among the sources, else some of the package.

    Nothing is downloaded.
    """
    if images is not None:
        return read_images(images, count)
    for record in (Record.read(source) for source in sources if is_run(source)):
        if record.source is not None and record.source not in KNOWN:
            with contextlib.suppress(DataError):  # the data may have been moved since
                return read_images(record.source, count, wanted=record.wanted)
    if samples() and samples().keys() <= set(task.output_names):
        return read_images(str(packaged_folder() / "samples"), count)
    if read_embedded().train.schema != task.schema:
        text = "no images are known that this model was made for, so answers are compared on grey images of clothes"
        warnings.warn(f"{text}; give better ones: --images photos/", Notice, stacklevel=2)
    return read_images("demo", count)


def _is_packed(folder: Path) -> bool:
    """Whether a folder has its images in arrays or shards, so that image files in it are something else."""
    return looks_like_cifar(folder) or looks_like_arrays(folder) or bool(find_shards(folder))


def _spread(total: int, count: int) -> list[int]:
    """So many numbers below a total, at even distances."""
    return [index * total // min(count, total) for index in range(min(count, total))]
