"""Pictures by name, wherever they lie: files, all below a folder, members of a tar, rows of a table of paths."""

import csv
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from torch import Tensor

from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.table import PATH
from vitrail.deploy.engine import Engine
from vitrail.errors import BrokenImage, ConfigError, DataError
from vitrail.tasks.predict import Prediction, image_files, likeliest

TABLES = {".csv": ",", ".tsv": "\t"}  # what stands between the cells
_WORKERS, _TOGETHER = 8, 32


@dataclass(frozen=True)
class Picture:
    """A file, or with `start` and `length` a part of a tar; the name is unique and tells where it lies."""

    name: str
    file: Path
    start: int = 0
    length: int | None = None

    def read(self) -> bytes:
        """The file as it was stored."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read() if self.length is None else file.read(self.length)


def find_pictures(paths: Iterable[str | Path]) -> Iterator[Picture]:
    """What files, folders, tars and tables hold, in their order; names of what is missing come as they are."""
    for path in map(Path, paths):
        if path.suffix.lower() == ".tar" and path.is_file():
            yield from _in_tar(path)
        elif path.suffix.lower() in TABLES and path.is_file():
            yield from _in_table(path)
        else:
            yield from (Picture(str(file), file) for file in image_files(path))


def _in_tar(path: Path) -> Iterator[Picture]:
    try:
        with tarfile.open(path, "r:") as tar:  # "r:" is uncompressed: members can be read where they lie
            for member in tar:
                if member.isfile() and Path(member.name).suffix.lower() in SUFFIXES:
                    yield Picture(f"{path}/{member.name}", path, member.offset_data, member.size)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path} is no tar that can be read ({error}); a compressed one must be unpacked") from error


def _in_table(path: Path) -> Iterator[Picture]:
    """Paths are relative to the folder of the table."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter=TABLES[path.suffix.lower()], strict=True)
            column = next((name for name in rows.fieldnames or () if name.strip().lower() in PATH), None)
            if column is None:
                raise DataError(f"{path} has no column of image paths; call one of them {' or '.join(PATH)}")
            for row in rows:
                if not row[column]:
                    raise DataError(f"{path}, line {rows.line_num}: the column {column!r} is empty")
                yield Picture(str(path.parent / row[column]), path.parent / row[column])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no table of paths that can be read: {error}") from error


def answer_pictures(
    engine: Engine, pictures: Iterable[Picture], *, top: int = 5, together: int = _TOGETHER
) -> Iterator[Prediction]:
    """The `top` likeliest classes of each picture, in their order; or why one cannot be read."""
    if top < 1:
        raise ConfigError(f"top is {top}; it must be 1 or more")
    left = iter(pictures)
    with ThreadPoolExecutor(_WORKERS) as pool:
        while batch := list(islice(left, together)):
            yield from _answer(engine, batch, list(pool.map(_decoded, batch)), top)


def _answer(engine: Engine, batch: Sequence[Picture], read: Sequence[Tensor | str], top: int) -> Iterator[Prediction]:
    probabilities = engine.probabilities(engine.predict([image for image in read if isinstance(image, Tensor)]))
    rows = zip(probabilities.tolist(), engine.chosen(probabilities).tolist(), strict=True)
    for picture, image in zip(batch, read, strict=True):
        if isinstance(image, str):
            yield Prediction(picture.name, error=image)
            continue
        yield Prediction(picture.name, likeliest(engine.labels, *next(rows), top=top))


def _decoded(picture: Picture) -> Tensor | str:
    """Uint8 C H W, or what is wrong."""
    if picture.file.is_dir():
        return f"{picture.name} is a folder without images"
    try:
        return decode(picture.read(), name=picture.name)
    except BrokenImage as error:
        return str(error)
    except OSError as error:
        return f"{picture.name} cannot be read: {error.strerror or error}"
