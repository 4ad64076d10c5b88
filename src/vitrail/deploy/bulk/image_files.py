"""Images by name: files, all files below a folder, members of a tar, rows of a table of paths; and predictions."""

import csv
import io
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vitrail.data.decode import SUFFIXES
from vitrail.data.sources.table import PATH
from vitrail.errors import ConfigError, DataError
from vitrail.files import open_regular, read_bytes
from vitrail.runs.drawings import Drawings
from vitrail.runs.predict import FEW, Asked, Read, answered, image_files
from vitrail.runs.predictor import Predictor
from vitrail.tasks.answer import Prediction

TABLES = {".csv": ",", ".tsv": "\t"}  # the separator of cells
_WORKERS, _BATCH = 8, 32


@dataclass(frozen=True)
class ImageFile:
    """A file, or with `start` and `length` a part of a tar; the name is unique.

    `below` is its path below the folder, the tar or the table that was given.
    """

    name: str
    file: Path
    start: int = 0
    length: int | None = None
    below: str = ""

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
            for file in image_files(path):
                yield ImageFile(str(file), file, below=str(file.relative_to(path)) if file != path else file.name)


def _in_tar(path: Path) -> Iterator[ImageFile]:
    try:
        # "r:" is uncompressed: members can be read in place.
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isfile() and Path(member.name).suffix.lower() in SUFFIXES:
                    yield ImageFile(f"{path}/{member.name}", path, member.offset_data, member.size, member.name)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path} is not a readable tar file ({error}); if it is compressed, unpack it") from error


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
                yield ImageFile(str(path.parent / row[column]), path.parent / row[column], below=row[column])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a readable table of paths: {error}") from error


def predict_images(
    model: Predictor,
    images: Iterable[ImageFile],
    *,
    top: int = 5,
    tile: int | None = None,
    draw: str | Path | None = None,
    batch: int = _BATCH,
) -> Iterator[Prediction]:
    """An answer for each image, in their order; or the reason why it cannot be read.

    `tile` and `draw` are those of `vitrail.runs.predict.predict`.
    """
    if top < 1:
        raise ConfigError(f"--top {top} is not allowed: must be 1 or more")
    drawings = None
    if draw is not None:
        images = list(images)
        drawings = Drawings(draw, [image.name for image in images])
    left, asked = iter(images), Asked(top, tile, drawings)
    keep = asked.keeps_pictures(model)

    def read(image: ImageFile) -> Read:
        return Read.of_file(image.name, image.file, image.read, model.preprocess, keep=keep)

    with ThreadPoolExecutor(_WORKERS) as pool:
        while some := list(islice(left, min(batch, FEW) if keep else batch)):
            yield from answered(model, list(pool.map(read, some)), asked)
