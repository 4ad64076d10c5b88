"""A folder of images: each folder in it is a class; train, val and test folders above them are splits."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found, digest, file_facts, label_digest
from vitrail.data.decode import SUFFIXES, decode
from vitrail.errors import BrokenImage, DataError, listed

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_JUNK = ("__MACOSX",)


class Files(Dataset):
    """Image files with labels; paths are relative to `root`."""

    def __init__(
        self, root: Path, paths: Sequence[str], labels: Tensor, classes: tuple[str, ...], *, name: str = ""
    ) -> None:
        self.root, self.paths, self.labels, self.classes = root, list(paths), labels, classes
        self.name = name or str(root)

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W; BrokenImage where it cannot be read or decoded."""
        return decode(self.encoded(index), name=self.where(index))

    def where(self, index: int) -> str:
        """The path of the file."""
        return str(self.root / self.paths[index])

    @property
    def fingerprint(self) -> str:
        """Names, sizes and dates of all files, and their labels."""
        facts = (f"{path}:{file_facts(self.root / path)}" for path in self.paths)
        return digest([*facts, *self.classes, label_digest(self.labels)])

    def key(self, index: int) -> str:
        """The relative path, written with / everywhere."""
        return self.paths[index].replace(os.sep, "/")

    def encoded(self, index: int) -> bytes:
        """The bytes of the file."""
        path = self.root / self.paths[index]
        try:
            return path.read_bytes()
        except OSError as error:
            raise BrokenImage(f"{path} cannot be read: {error.strerror or error}") from error


class Scan(NamedTuple):
    """What lies below a folder: images and other files, as paths relative to it, in natural order."""

    images: list[str]
    others: list[str]


def natural(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key that sorts img2 before img10; ties fall to the plain text."""
    parts = re.split(r"([0-9]+)", text)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part.casefold()) for part in parts if part], text


def scan(root: Path) -> Scan:
    """Every file below a folder that is not hidden; links to folders are followed, but never in a circle."""
    images: list[str] = []
    others: list[str] = []
    for path in _walk(root, "", frozenset({os.path.realpath(root)})):
        (images if os.path.splitext(path)[1].lower() in SUFFIXES else others).append(path)  # noqa: PTH122  (hot loop)
    return Scan(sorted(images, key=natural), sorted(others, key=natural))


def _walk(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    """Relative paths; `above` are the real folders on the way down, which no link may lead back to."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror}; check its permissions") from error
    for entry in entries:
        if not _is_shown(entry.name):
            continue
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real not in above:
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}{os.sep}", above | {real})
        else:  # a link that leads nowhere counts too: it will be named as unreadable
            yield f"{prefix}{entry.name}"


def read_folder(root: Path) -> Found:
    """Splits of a folder of images; DataError where it holds none, or none in a class."""
    found = scan(root)
    if not found.images:
        what = f"{len(found.others):,} files, none of them an image" if found.others else "no files"
        raise DataError(f"{root} holds {what}; it should hold a folder of images for each class")
    tops = sorted({path.split(os.sep, 1)[0] for path in found.images if os.sep in path}, key=natural)
    folders = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    if "train" not in folders.values():
        return _one_folder(root, found)
    if len(set(folders.values())) < len(folders):
        raise DataError(f"{root} has two folders for one split: {', '.join(folders)}; leave one of each")
    return _split_folders(root, found, folders)


def _one_folder(root: Path, found: Scan) -> Found:
    members = [path for path in found.images if os.sep in path]
    if not members:
        raise DataError(
            f"{root} holds {len(found.images):,} images but no class folders; make a folder for each class and move "
            "the images there, or describe them in a CSV file with the columns path and label"
        )
    classes = _classes(members)
    _refuse_one_nested(root, members, classes)
    dataset = _files(root, members, classes, str(root))
    empty = tuple(name for name in _folders(root) if name not in classes)
    notes = [f"{root} has {len(members):,} images in {len(classes)} class folders."]
    notes += _leftovers(found, len(found.images) - len(members), [], empty)
    return Found(dataset, notes=tuple(notes), empty=empty)


def _split_folders(root: Path, found: Scan, folders: dict[str, str]) -> Found:
    inside: dict[str, list[str]] = {split: [] for split in folders.values()}
    classless, elsewhere = 0, set()
    for path in found.images:
        parts = Path(path).parts
        if parts[0] not in folders or len(parts) == 1:
            elsewhere.add(parts[0])
        elif len(parts) == 2:
            classless += 1
        else:
            inside[folders[parts[0]]].append(path.split(os.sep, 1)[1])
    names = {split: top for top, split in folders.items()}
    for split, members in inside.items():
        if not members:
            raise DataError(f"{root / names[split]} has no images in class folders; make a folder for each class in it")
    classes = _classes([path for members in inside.values() for path in members])
    parts_of = {
        split: _files(root / names[split], members, classes, str(root / names[split]))
        for split, members in inside.items()
    }
    sizes = ", ".join(f"{names[split]} {len(members):,}" for split, members in inside.items())
    empty = tuple(_empty_of_splits(root, folders, classes))
    notes = [f"{root} has splits of its own: {sizes} images."]
    notes += _leftovers(found, classless, sorted(elsewhere), empty)
    return Found(parts_of["train"], parts_of.get("val"), parts_of.get("test"), tuple(notes), empty)


def _empty_of_splits(root: Path, folders: Iterable[str], classes: Sequence[str]) -> Iterator[str]:
    """Splits without images, and folders in the others that are no class for want of any."""
    for top in _folders(root):
        if top in folders:
            yield from (f"{top}{os.sep}{name}" for name in _folders(root / top) if name not in classes)
        elif top.lower() in SPLIT_NAMES:
            yield top


def _folders(root: Path) -> list[str]:
    """The folders in a folder that are not hidden."""
    return sorted((entry.name for entry in os.scandir(root) if entry.is_dir() and _is_shown(entry.name)), key=natural)


def _is_shown(name: str) -> bool:
    """Whether a file or folder is meant for people to see."""
    return not name.startswith(".") and name not in _JUNK


def _classes(members: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({path.split(os.sep, 1)[0] for path in members}, key=natural))


def _files(root: Path, members: Sequence[str], classes: tuple[str, ...], name: str) -> Files:
    position = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([position[path.split(os.sep, 1)[0]] for path in members], dtype=torch.int64)
    return Files(root, members, labels, classes, name=name)


def _refuse_one_nested(root: Path, members: Sequence[str], classes: tuple[str, ...]) -> None:
    """One folder that itself holds folders is a wrapper around the data, as archives often have, and no class."""
    below = {Path(path).parts[1] for path in members if path.count(os.sep) >= 2}
    if len(classes) == 1 and len(below) >= 2:
        raise DataError(
            f"{root} has one folder only, {classes[0]!r}, which holds {len(below)} folders itself; "
            f"point to {root / classes[0]} instead"
        )


def _leftovers(found: Scan, classless: int, elsewhere: Sequence[str], empty: Sequence[str]) -> Iterator[str]:
    if empty:
        yield f"Folders without an image are left out: {listed(empty, 5)}."
    if classless:
        yield f"Images outside of class folders are left out: {classless:,}."
    if elsewhere:
        yield f"Images beside the split folders are left out: {', '.join(elsewhere[:5])}."
    if found.others:
        yield f"Files that are no images are left out: {len(found.others):,}, such as {found.others[0]}."
