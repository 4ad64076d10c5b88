"""Masks and depth maps of very many images: a folder with a file for each, which `vitrail train` reads.

Files are named after the images, with their folders below the one that was given, so that `data/images/` and
`--out data/masks/` make a data set; `dataset.csv` has the pairs wherever the images are. A file is written before its
row of `predictions.jsonl`, from which a call that was interrupted goes on.
"""

import csv
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePath

from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.table_files import Row, TableFile, is_text, part_of, row_of
from vitrail.errors import ConfigError, DataError, WriteError
from vitrail.files import is_file, write_atomically
from vitrail.tasks.answer import AnswerFile, Prediction

ROWS, PAIRS = "predictions.jsonl", "dataset.csv"
COLUMN = "file"  # of a row: the file of the image, relative to the folder
_FORMULA = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"  # first letters that a spreadsheet may run


class PixelFolder(TableFile):
    """A folder of maps of one kind, such as masks, for a task with these columns; `rows` is the table in it."""

    reasons = f"{ROWS} says why"

    def __init__(self, folder: Path, columns: Sequence[str], kind: str) -> None:
        self.folder, self.columns, self.kind = folder, (COLUMN, *columns), kind
        self.rows = folder / ROWS
        self._taken: set[str] = set()

    def check(self, out: Path) -> None:
        """ConfigError for a folder with files of others, which might be overwritten, or read as masks."""
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; name a folder for files of kind {self.kind!r}")
        begun = any((self.folder / name).exists() for name in (ROWS, f"{ROWS}.partial"))
        if not begun and any(not one.name.startswith(".") for one in self.folder.iterdir()):
            raise ConfigError(f"{self.folder} is not empty, and has no {ROWS} of an earlier call; name another folder")

    def begin(self, rows: Sequence[Row], new: Iterable[str]) -> None:
        """Takes in which files there are; DataError where one was removed since."""
        names = [row[COLUMN] for row in rows if row[COLUMN] is not None]
        if (odd := next((name for name in names if not isinstance(name, str) or "\0" in name), None)) is not None:
            raise DataError(f"{self.rows} is damaged: {str(odd)[:80]!r} is not the name of a file; remove the folder")
        self._taken = set(names)
        if (gone := next((name for name in self._taken if not is_file(self.folder / name)), None)) is not None:
            raise DataError(f"{self.folder / gone} is missing, but {ROWS} names it; restore it, or remove the folder")

    def row(self, prediction: Prediction, image: ImageFile, columns: Sequence[str]) -> Row:
        """Writes the file of an answer, if there is one; the row names it."""
        answer = part_of(prediction, self.kind).answer
        made = None if answer is None else answer.to_file()
        return row_of(prediction, columns) | {COLUMN: None if made is None else self._write(made, image)}

    def _write(self, made: AnswerFile, image: ImageFile) -> str:
        name = self._free(image, made.suffix)
        files = {
            beside: text.encode(errors="surrogateescape")
            for beside, text in made.beside.items()
            if not (self.folder / beside).exists()
        }
        for file, data in (files | {name: made.data}).items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.folder.resolve()):
                raise WriteError(f"cannot write {path}: its folder is a link to another place; remove that link")
            write_atomically(path, partial(_fill, data=data))
        return name

    def _free(self, image: ImageFile, suffix: str) -> str:
        """A name below the folder that no other image has; the folders of the image are kept."""
        parts = [part for part in PurePath(image.below or image.file.name).parts if part != ".." and "/" not in part]
        whole = PurePath(*(parts or [image.file.name])).with_suffix("")
        if any(str(folder) in self._taken for folder in whole.parents):  # a folder cannot have the name of a file
            whole = PurePath("_".join(whole.parts))
        name, number = f"{whole}{suffix}", 2
        while name in self._taken or (self.folder / name).is_dir():
            name, number = f"{whole}-{number}{suffix}", number + 1
        self._taken.add(name)
        return name

    def write(self, rows: Sequence[Row], path: Path, columns: Sequence[str]) -> None:
        """The pairs of images and maps that can be learned from, and the table."""
        pairs = [
            (os.path.relpath(row["path"], self.folder), row[COLUMN])
            for row in rows
            if row[COLUMN] is not None and is_text(row["path"]) and is_file(row["path"])
        ]
        write_atomically(self.folder / PAIRS, lambda new: self._write_pairs(pairs, new))
        super().write(rows, path, columns)

    def _write_pairs(self, pairs: Iterable[tuple[str, str]], path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("path", self.kind))
            writer.writerows([f"./{name}" if name[0] in _FORMULA else name for name in pair] for pair in pairs)


def _fill(path: Path, *, data: bytes) -> None:
    path.write_bytes(data)
