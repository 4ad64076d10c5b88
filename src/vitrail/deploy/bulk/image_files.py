"""Images by name: files, all files below a folder, members of a tar, rows of a table of paths; and predictions."""

import csv
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.sources.table import PATH
from vitrail.errors import BrokenImage, ConfigError, DataError
from vitrail.files import open_regular, read_bytes
from vitrail.runs.predict import Predictor, answers, image_files, not_finite
from vitrail.tasks.answer import Prediction

TABLES = {".csv": ",", ".tsv": "\t"}  # the separator of cells
_WORKERS, _BATCH = 8, 32


@dataclass(frozen=True)
class ImageFile:
    """A file, or with `start` and `length` a part of a tar; the name is unique."""

    name: str
    file: Path
    start: int = 0
    length: int | None = None

    def read(self) -> bytes:
        """The bytes as they were stored."""
        return read_bytes(self.file, start=self.start, length=self.length)


def find_images(paths: Iterable[str | Path]) -> Iterator[ImageFile]:
    """The images of files, folders, tars and tables, in their order; missing files are included."""
    for path in map(Path, paths):
        if path.suffix.lower() == ".tar" and path.is_file():
            yield from _in_tar(path)
        elif path.suffix.lower() in TABLES and path.is_file():
            yield from _in_table(path)
        else:
            yield from (ImageFile(str(file), file) for file in image_files(path))


def _in_tar(path: Path) -> Iterator[ImageFile]:
    try:
        # "r:" is uncompressed: members can be read in place.
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isfile() and Path(member.name).suffix.lower() in SUFFIXES:
                    yield ImageFile(f"{path}/{member.name}", path, member.offset_data, member.size)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path} is not a tar that can be read ({error}); unpack it if it is compressed") from error


def _in_table(path: Path) -> Iterator[ImageFile]:
    """Paths are relative to the folder of the table."""
    try:
        with open_regular(path) as file, io.TextIOWrapper(file, newline="", encoding="utf-8-sig") as text:
            rows = csv.DictReader(text, delimiter=TABLES[path.suffix.lower()], strict=True)
            column = next((name for name in rows.fieldnames or () if name.strip().lower() in PATH), None)
            if column is None:
                raise DataError(f"{path} has no column of image paths; name one {' or '.join(PATH)}")
            for row in rows:
                if not row[column]:
                    raise DataError(f"{path}, line {rows.line_num}: the column {column!r} is empty")
                yield ImageFile(str(path.parent / row[column]), path.parent / row[column])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table of paths that can be read: {error}") from error


def predict_images(
    model: Predictor, images: Iterable[ImageFile], *, top: int = 5, batch: int = _BATCH
) -> Iterator[Prediction]:
    """An answer for each image, in their order; or the reason why it cannot be read."""
    if top < 1:
        raise ConfigError(f"--top {top} is not allowed: must be 1 or more")
    left = iter(images)
    with ThreadPoolExecutor(_WORKERS) as pool:
        while some := list(islice(left, batch)):
            yield from _predicted(model, some, list(pool.map(lambda image: _fitted(model, image), some)), top)


def _predicted(
    model: Predictor, images: Sequence[ImageFile], fitted: Sequence[Tensor | str], top: int
) -> Iterator[Prediction]:
    tensors = [one for one in fitted if isinstance(one, Tensor)]
    made = iter(answers(model, torch.cat(tensors), top=top) if tensors else ())
    for image, found in zip(images, fitted, strict=True):
        if isinstance(found, str):
            yield Prediction(image.name, error=found)
        elif (answer := next(made)) is None:
            yield Prediction(image.name, error=not_finite(model, image.name))
        else:
            yield Prediction(image.name, answer)


def _fitted(model: Predictor, image: ImageFile) -> Tensor | str:
    """Uint8 1 C *image_size, or what is wrong."""
    if image.file.is_dir():
        return f"{image.name} is a folder without images"
    try:
        return model.preprocess.fit(decode(image.read(), name=image.name)[None])[0]
    except BrokenImage as error:
        return str(error)
    except OSError as error:
        return f"{image.name} cannot be read: {error.strerror or error}"
