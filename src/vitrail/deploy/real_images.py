"""Real images for export and benchmark: those that were named, those of the run, or those of the package."""

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from vitrail.data.decode import decode
from vitrail.data.sources.arrays import looks_like_arrays
from vitrail.data.sources.catalogue import KNOWN
from vitrail.data.sources.cifar import looks_like_cifar
from vitrail.data.sources.embedded import read_embedded
from vitrail.data.sources.opening import ANY, open_whole
from vitrail.data.sources.shards import find_shards
from vitrail.data.sources.table import Wanted
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
    if not Path(source).is_dir() or _is_packed(Path(source)):
        data = open_whole(source, wanted=wanted)
        return [data.read(index) for index in _spread(len(data), count)]
    files = [path for path in image_files(source) if path.is_file()]
    found = []
    for index in _spread(len(files), count):
        with contextlib.suppress(BrokenImage):  # a folder of photographs may have some
            found.append(decode(read_bytes(files[index]), name=str(files[index])))
    if not found:
        raise DataError(f"{source} has no images that can be read")
    return found


def images_for_export(
    trained: TrainedModel, *, images: str | None = None, int8: str | None = None, count: int = 200
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Images for the certificate, and others that calibrate int8, never the same; `images` and `int8` name them.

    Without `images`, the certificate has half of those of `int8`, or the run's own data; the packaged model has some.
    """
    if images is not None:
        return read_images(images, count), None if int8 is None else read_images(int8, count)
    if int8 is not None:
        both = read_images(int8, 2 * count)
        return both[1::2], both[::2]
    if trained.source == PACKAGED:
        return read_images(str(packaged_folder() / "samples"), count), None
    if trained.record is None or trained.record.source is None:
        raise ConfigError(f"{trained.source} does not say what it was trained on; give images: --images photos/")
    return read_images(trained.record.source, count, wanted=trained.record.wanted), None


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
