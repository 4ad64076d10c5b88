"""A class for each pixel: semantic segmentation."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decode import decode_values
from vitrail.data.render.numbered import truth_of
from vitrail.data.targets.class_names import notes_on_similar, unknown_classes_error
from vitrail.data.targets.drawing import draw_classes
from vitrail.data.targets.pixel_files import has_file, head_of, move_pixels, path_of, references
from vitrail.data.targets.target import Audit, Column, Read, Target
from vitrail.errors import BrokenImage, DataError, listed
from vitrail.files import is_file, read_bytes, read_text
from vitrail.report import Table, Value

IGNORE = 255
NAME_FILES = ("classes.txt", "labels.txt", "class_names.txt")
VOID = ("void", "ignore", "ignored", "unlabelled", "unlabeled", "unknown")  # names of pixels that are not learned
_LEVELS = 256
_MOST = 0.75  # of the masks
_PASTED = 0.5  # the share of classes that copy-paste takes from an image
_SHOWN = 3  # classes that a text names
_NAMES_LIMIT = 1 << 20  # bytes of a list of names


class MaskFacts(NamedTuple):
    """What is known of one mask file: its height and width, and the values in it; or why it cannot be read."""

    size: tuple[int, int] = (0, 0)
    values: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class MaskTarget(Target, kind="mask"):
    """Class numbers B H W uint8 in batches, 255 for pixels that are ignored; references to files in datasets."""

    field: ClassVar[str] = "mask"
    column_names: ClassVar[tuple[str, ...]] = ("mask", "masks", "segmentation")
    dense: ClassVar[torch.dtype | None] = torch.uint8
    classes: tuple[str, ...]

    @classmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """Paths of mask files, relative to the table's folder; "" for an image without one."""
        (column,) = columns
        paths = pixel_paths(column, "mask")
        facts = look_at_masks([path for path in paths if path is not None])
        known = iter(facts)
        for row, path in enumerate(paths):
            if path is not None and (error := next(known).error):
                raise column.error(row, error)
        folders = list(_folders(paths))
        near = [column.path.parent, *folders, *(folder.parent for folder in folders)]
        names, _, unfit = fitting_names(near, [one.values for one in facts])
        classes, table = mask_classes({value for one in facts for value in one.values}, names)
        values = references(paths, [table] * len(paths))
        return Read(cls(classes=classes), values, (f"masks of {len(classes)} classes", *unfit))

    def describe(self) -> str:
        """The number of classes."""
        return f"masks of {len(self.classes)} classes" if len(self.classes) != 1 else "masks of 1 class"

    def load(self, value: Tensor) -> Tensor:
        """A reference L -> class numbers H W uint8."""
        if (path := path_of(value, _LEVELS)) is None:
            return torch.full((1, 1), IGNORE, dtype=torch.uint8)
        numbers = read_mask(path) if (rendered := truth_of(path)) is None else rendered.mask
        return torch.from_numpy(np.frombuffer(head_of(value, _LEVELS), np.uint8)[numbers])

    def unknown(self, like: Tensor) -> Tensor:
        """A reference to no file."""
        return torch.zeros_like(like[0])

    def known(self, values: Tensor) -> Tensor:
        """Images with a mask: a file, or a pixel that has a class."""
        return has_file(values, _LEVELS) if values.ndim == 2 else (values != IGNORE).flatten(1).any(dim=1)

    def align(self, values: Tensor, to: Target, *, name: str) -> Tensor:
        """Class numbers of another target, matched by name."""
        if to == self:
            return values
        if not isinstance(to, MaskTarget):
            return super().align(values, to, name=name)
        if (problem := unknown_classes_error(name, self.classes, to.classes)) is not None:
            raise DataError(problem)
        number = torch.full((_LEVELS,), IGNORE, dtype=torch.uint8)
        number[: len(self.classes)] = torch.tensor([to.classes.index(label) for label in self.classes]).byte()
        return torch.cat([number[values[:, :_LEVELS].long()], values[:, _LEVELS:]], dim=1)

    def notes(self) -> Iterator[str]:
        """Class names that may mean the same."""
        yield from notes_on_similar(self.classes)

    def move(self, values: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """The class of the nearest pixel; pixels from outside of the image are ignored."""
        return move_pixels(values, maps, size, IGNORE)

    def paste(self, values: Tensor, other: Tensor, region: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The pixels of the other image in the region."""
        return torch.where(region, other, values)

    def objects(self, values: Tensor, draws: Tensor, size: tuple[int, int]) -> Tensor | None:
        """All pixels of about half of the classes."""
        number = values.flatten(1).long() % draws.shape[1]  # B HW
        return ((draws.gather(1, number) < _PASTED) & (values.flatten(1) != IGNORE)).view(values.shape)

    def text(self, value: Tensor) -> str:
        """The largest classes and their shares of the pixels; the name of the file for a reference."""
        if value.ndim == 1:
            path = path_of(value, _LEVELS)
            return "not annotated" if path is None else path.name
        counts = self._pixels(value)
        order = sorted((at for at, count in enumerate(counts) if count), key=lambda at: -counts[at])
        parts = [f"{self.classes[at]} {100 * counts[at] / max(value.numel(), 1):.3g} %" for at in order]
        return listed(parts, _SHOWN) or "not annotated"

    def draw(self, image: Tensor, value: Tensor) -> Tensor:
        """The image tinted by class."""
        pixels = self.load(value) if value.ndim == 1 else value
        return draw_classes(image, pixels, IGNORE) if pixels.shape == image.shape[1:] else image

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """The share of pixels of each class and split, and the images that have it."""
        counts = {split: _counted(self, values) for split, values in parts.items()}
        rows: list[dict[str, Value]] = []
        for at, name in enumerate(self.classes):
            row: dict[str, Value] = {"class": name}
            for split, found in counts.items():
                row[f"{split} images"] = int((found[:, at] > 0).sum())
                row[f"{split} pixels"] = float(found[:, at].sum() / max(found.sum(), 1))
            rows.append(row)
        units: dict[str, Any] = {"class": ""}
        for split in parts:
            units |= {f"{split} images": "", f"{split} pixels": "share"}
        advice = [
            f"No mask in {split} has the class {listed(map(repr, missing), 5)}: add some, or remove the class."
            for split, found in counts.items()
            if (missing := [name for at, name in enumerate(self.classes) if len(found) and not found[:, at].any()])
        ]
        return Audit((Table("Pixels per class", units, tuple(rows)),), [*advice, *self.notes()])

    def _pixels(self, value: Tensor) -> list[int]:
        found: list[int] = value.flatten().long().bincount(minlength=_LEVELS)[: len(self.classes)].tolist()
        return found


def _counted(target: MaskTarget, values: Tensor) -> "np.ndarray[Any, Any]":
    """Pixels of each class in each image, N K; zeros for a mask that cannot be read."""

    def count(value: Tensor) -> list[int]:
        try:
            return target._pixels(target.load(value) if value.ndim == 1 else value)
        except BrokenImage:
            return [0] * len(target.classes)

    return np.array(in_threads(count, values), dtype=np.int64).reshape(len(values), len(target.classes))


def named_classes(folders: Iterable[Path]) -> Iterator[tuple[list[str], Path]]:
    """The names in lists of classes such as classes.txt, a line each, and their files; DataError for a bad list."""
    for file in (folder / name for folder in dict.fromkeys(folders) for name in NAME_FILES):
        if not file.is_file():
            continue
        try:
            lines = [line.strip() for line in read_text(file, _NAMES_LIMIT).splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} cannot be read as a list of class names: {error}") from error
        if len(set(lines)) < len(lines) or not lines:
            raise DataError(f"{file} must have one different class name in each line")
        yield lines, file


def fitting_names(
    folders: Iterable[Path], masks: Sequence[Sequence[int]]
) -> tuple[list[str] | None, Path | None, list[str]]:
    """The first list of classes that fits the values of each mask, its file, and notes on those that do not fit.

    A list fits if it names the values of most masks: those beyond it in a few masks may be mistakes.
    """
    values = {value for one in masks for value in one}
    largest = max(values - {IGNORE}, default=0)
    notes: list[str] = []
    for lines, file in named_classes(folders):
        named = sum(all(value < len(lines) or value == IGNORE for value in one) for one in masks)
        if values == {0, IGNORE} and len(lines) > 2:
            why = f"it names {len(lines)} classes, and masks have the values 0 and 255 only"
        elif named < len(masks) * _MOST:
            why = (
                f"it names {len(lines)} class{'es' * (len(lines) != 1)}, and masks have values up to {largest}. If it "
                f"is about these masks, list {largest + 1} classes in it, a line each; otherwise move it elsewhere"
            )
        else:
            return lines, file, notes
        notes.append(f"{file} is not used for the names of classes: {why}.")
    return None, None, notes


def _folders(paths: Iterable[Path | None]) -> Iterator[Path]:
    return (path.parent for path in paths if path is not None)


def pixel_paths(column: Column, what: str) -> list[Path | None]:
    """The files that the cells of a column name, which must exist; None for an empty cell."""
    paths: list[Path | None] = []
    for row, cell in enumerate(column.cells):
        if not isinstance(cell, str):
            raise column.error(row, f"{cell!r} is not the path of a {what}")
        path = column.path.parent / cell if cell else None
        if path is not None and not is_file(path):
            raise column.error(row, f"{path} does not exist; give the path of a {what}, relative to the table's folder")
        paths.append(path)
    return paths


def read_mask(path: Path) -> "np.ndarray[Any, Any]":
    """The numbers in a mask file, H W; BrokenImage if it has colours, or numbers from 256 on."""
    try:
        pixels = decode_values(read_bytes(path), name=str(path))
    except OSError as error:
        raise BrokenImage(f"{path} cannot be read: {error.strerror or error}") from error
    if pixels.dtype != np.uint8 and (pixels.min() < 0 or pixels.max() >= _LEVELS):
        raise BrokenImage(f"{path} has numbers from {pixels.min()} to {pixels.max()}; a mask has 0 to 255")
    return pixels.astype(np.uint8)


def look_at_masks(paths: Sequence[Path]) -> list[MaskFacts]:
    """The size and values of mask files, read in threads."""

    def look(path: Path) -> MaskFacts:
        try:
            pixels = read_mask(path)
        except BrokenImage as error:
            return MaskFacts(error=str(error))
        found = np.flatnonzero(np.bincount(pixels.ravel(), minlength=_LEVELS))
        return MaskFacts((pixels.shape[0], pixels.shape[1]), tuple(found.tolist()))

    return in_threads(look, paths)


def in_threads(work: Any, items: Iterable[Any]) -> list[Any]:
    """The results of a function for each item, in order."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))


def mask_classes(found: set[int], names: Sequence[str] | None = None) -> tuple[tuple[str, ...], bytes]:
    """Class names and the class number of each pixel value, for the values that masks have.

    Without names, classes are the values from 0 to the largest, and 255 is ignored; masks of 0 and 255 alone have two
    classes, which two names can name. Names in `VOID` are ignored, as are values beyond the last name.
    """
    table = bytearray([IGNORE]) * _LEVELS
    both = ("background", "foreground") if names is None else tuple(names)
    if found == {0, IGNORE} and len(both) == 2 and not {name.lower() for name in both} & set(VOID):
        table[0], table[IGNORE] = 0, 1
        return both, bytes(table)
    if names is None:
        names = [f"class {value}" for value in range(max(found - {IGNORE}, default=0) + 1)]
    classes: list[str] = []
    for value, name in enumerate(names[:IGNORE]):
        if name.lower() not in VOID:
            table[value] = len(classes)
            classes.append(name)
    return tuple(classes), bytes(table)
