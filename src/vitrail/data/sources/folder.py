"""A folder of images: each folder in it is a class; train, val and test folders above these are splits.

Without class folders, the images are unlabelled.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found, Targets, digest, file_facts, target_digest
from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.natural import natural
from vitrail.data.targets import ClassTarget, Schema
from vitrail.errors import BrokenImage, DataError, listed
from vitrail.files import read_bytes

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_JUNK = ("__MACOSX",)


class Files(Dataset):
    """Image files with targets; paths are relative to `root`."""

    def __init__(self, root: Path, paths: Sequence[str], targets: Targets, schema: Schema, *, name: str = "") -> None:
        self.root, self.paths, self.targets, self.schema = root, list(paths), targets, schema
        self.name = name or str(root)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W; BrokenImage if it cannot be read or decoded."""
        return decode(self.encoded(index), name=self.where(index))

    def where(self, index: int) -> str:
        """The path of the file."""
        return str(self.root / self.paths[index])

    @property
    def fingerprint(self) -> str:
        """Names, sizes and dates of all files, and their targets."""
        return digest([self.image_fingerprint, target_digest(self.schema, self.targets)])

    @property
    def image_fingerprint(self) -> str:
        """Names, sizes and dates of all files."""
        return digest(f"{path}:{file_facts(self.root / path)}" for path in self.paths)

    def key(self, index: int) -> str:
        """The relative path, with / on every system."""
        return self.paths[index].replace(os.sep, "/")

    def encoded(self, index: int) -> bytes:
        """The bytes of the file."""
        path = self.root / self.paths[index]
        try:
            return read_bytes(path)
        except OSError as error:
            raise BrokenImage(f"{path} cannot be read: {error.strerror or error}") from error


class Scan(NamedTuple):
    """The files below a folder: images and others, as relative paths in natural order."""

    images: list[str]
    others: list[str]


def scan(root: Path) -> Scan:
    """Every file below a folder that is not hidden; links to folders are followed, but never in a loop."""
    images: list[str] = []
    others: list[str] = []
    for path in _walk(root, "", frozenset({os.path.realpath(root)})):
        (images if os.path.splitext(path)[1].lower() in SUFFIXES else others).append(path)  # noqa: PTH122  (hot loop)
    return Scan(sorted(images, key=natural), sorted(others, key=natural))


def _walk(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    """Relative paths; `above` are the real parent folders, so that links cannot form a loop."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"cannot list {folder}: {error.strerror}; check its permissions") from error
    for entry in entries:
        if not _is_shown(entry.name):
            continue
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real not in above:
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}{os.sep}", above | {real})
        else:  # a dangling link counts too: it is reported as broken later
            yield f"{prefix}{entry.name}"


def read_folder(root: Path, scanned: Scan | None = None) -> Found:
    """The splits of a folder of images, which may have been scanned already; DataError if it has no images."""
    scanned = scanned or scan(root)
    if not scanned.images:
        what = f"no images, only {len(scanned.others):,} other files" if scanned.others else "no files"
        raise DataError(f"{root} has {what}; expected one folder of images per class, or images without labels")
    tops = sorted({path.split(os.sep, 1)[0] for path in scanned.images if os.sep in path}, key=natural)
    folders = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    if "train" not in folders.values():
        return _one_folder(root, scanned)
    if len(set(folders.values())) < len(folders):
        raise DataError(f"{root} has two folders for the same split: {', '.join(folders)}; keep one")
    return _split_folders(root, scanned, folders)


def _one_folder(root: Path, scanned: Scan) -> Found:
    members = [path for path in scanned.images if os.sep in path]
    if not members:
        note = f"{root} has {len(scanned.images):,} images without labels (no class folders)."
        return Found(Files(root, scanned.images, {}, {}), notes=(note, *_leftovers(scanned, 0, [], ())))
    classes = _classes(members)
    _refuse_one_nested(root, members, classes)
    dataset = _files(root, members, classes)
    empty = tuple(name for name in _folders(root) if name not in classes)
    notes = [f"{root} has {len(members):,} images in {len(classes)} class folders."]
    notes += _leftovers(scanned, len(scanned.images) - len(members), [], empty)
    return Found(dataset, notes=tuple(notes), empty=empty)


def _split_folders(root: Path, scanned: Scan, folders: dict[str, str]) -> Found:
    inside: dict[str, list[str]] = {split: [] for split in folders.values()}
    flat: dict[str, list[str]] = {split: [] for split in folders.values()}
    elsewhere = set()
    for path in scanned.images:
        parts = Path(path).parts
        if parts[0] not in folders or len(parts) == 1:
            elsewhere.add(parts[0])
        elif len(parts) == 2:
            flat[folders[parts[0]]].append(parts[1])
        else:
            inside[folders[parts[0]]].append(path.split(os.sep, 1)[1])
    names = {split: top for top, split in folders.items()}
    labelled = any(inside.values())
    for split, members in (inside if labelled else flat).items():
        if not members:
            what = "images in class folders; add one folder per class" if labelled else "images; add some"
            raise DataError(f"{root / names[split]} has no {what}")
    classes = _classes([path for members in inside.values() for path in members])
    classless = sum(map(len, flat.values())) if labelled else 0
    inside = inside if labelled else flat
    parts_of = {split: _files(root / names[split], members, classes) for split, members in inside.items()}
    sizes = ", ".join(f"{names[split]} {len(members):,}" for split, members in inside.items())
    empty = tuple(_empty_of_splits(root, folders, classes))
    notes = [f"{root} has splits: {sizes} images{'' if labelled else ' without labels'}."]
    notes += _leftovers(scanned, classless, sorted(elsewhere), empty)
    return Found(parts_of["train"], parts_of.get("val"), parts_of.get("test"), tuple(notes), empty)


def _empty_of_splits(root: Path, folders: Iterable[str], classes: Sequence[str]) -> Iterator[str]:
    """Split folders and class folders without images."""
    for top in _folders(root):
        if top in folders:
            yield from (f"{top}{os.sep}{name}" for name in _folders(root / top) if name not in classes)
        elif top.lower() in SPLIT_NAMES:
            yield top


def _folders(root: Path) -> list[str]:
    """The folders in a folder, without hidden ones."""
    return sorted((entry.name for entry in os.scandir(root) if entry.is_dir() and _is_shown(entry.name)), key=natural)


def _is_shown(name: str) -> bool:
    """Whether a file or folder is neither hidden nor system junk."""
    return not name.startswith(".") and name not in _JUNK


def _classes(members: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({path.split(os.sep, 1)[0] for path in members}, key=natural))


def _files(root: Path, members: Sequence[str], classes: tuple[str, ...]) -> Files:
    """The images of one split; unlabelled if there are no classes."""
    if not classes:
        return Files(root, members, {}, {})
    target = ClassTarget(classes=classes)
    position = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([position[path.split(os.sep, 1)[0]] for path in members], dtype=torch.int64)
    return Files(root, members, {target.field: labels}, {target.field: target})


def _refuse_one_nested(root: Path, members: Sequence[str], classes: tuple[str, ...]) -> None:
    """DataError if the only folder contains folders: a wrapper around the data, as archives often have, not a class."""
    below = {Path(path).parts[1] for path in members if path.count(os.sep) >= 2}
    if len(classes) == 1 and len(below) >= 2:
        raise DataError(
            f"{root} has only one folder, {classes[0]!r}, which contains {len(below)} folders; "
            f"use {root / classes[0]} instead"
        )


def _leftovers(scanned: Scan, classless: int, elsewhere: Sequence[str], empty: Sequence[str]) -> Iterator[str]:
    if empty:
        yield f"Folders without images are ignored: {listed(empty, 5)}."
    if classless:
        yield f"Images outside of class folders are ignored: {classless:,}."
    if elsewhere:
        yield f"Images outside of split folders are ignored: {', '.join(elsewhere[:5])}."
    if scanned.others:
        yield f"Files that are not images are ignored: {len(scanned.others):,}, such as {scanned.others[0]}."
