"""Images with a second file each, such as a mask or a depth map, found by the names of folders and files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.data.decode import inspect
from vitrail.data.decode_pixels import Header
from vitrail.data.sources.annotations import SPLITS, Collector
from vitrail.data.sources.folder import SPLIT_NAMES, Scan
from vitrail.errors import BrokenImage, DataError, listed
from vitrail.files import open_regular, read_bytes, read_text

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "rgb", "jpegimages", "pictures", "input", "left")
_HEADER = 1 << 16  # bytes that usually hold the size of an image
_LIST_LIMIT = 64 << 20  # bytes
_FEWEST = 2  # pairs that make a layout

Key = tuple[tuple[str, ...], str]  # folders without the one that tells images from others, and the bare name


class Names(NamedTuple):
    """How the second files are called."""

    what: str  # "mask"
    folders: tuple[str, ...]
    endings: tuple[str, ...]  # of file names, before the suffix
    suffixes: tuple[str, ...]
    folder_ending: str = ""  # "annot" for train and trainannot
    lists: str = ""  # a folder with lists of the images of each split


class Pair(NamedTuple):
    """An image and its second file, both relative to the source's folder."""

    image: str
    other: str


class Pairs(NamedTuple):
    """The pairs of each split, and how they were recognised."""

    splits: Mapping[str, Sequence[Pair]]
    reason: str


def find_pairs(root: Path, scanned: Scan, names: Names, collector: Collector | None = None) -> Pairs | None:
    """The pairs in a folder; None if fewer than half of the second files have an image. Lone files are noted."""
    others = {key: path for path in [*scanned.images, *scanned.others] for key in _other_key(path, names)}
    if len(others) < _FEWEST:
        return None
    taken = set(others.values())
    pairs, alone = {}, []
    for path in scanned.images:
        if path not in taken:
            key = _image_key(path)
            other = others.get(key)
            pairs[key] = Pair(path, other) if other is not None else None
            if other is None:
                alone.append(path)
    found = {key: pair for key, pair in pairs.items() if pair is not None}
    if len(found) < _FEWEST or 2 * len(found) < len(others):
        return None
    if collector is not None:
        _note_lone(root, names, [others[key] for key in others if key not in found], alone, collector)
    folders = dict.fromkeys(str(Path(pair.other).parent) for pair in found.values())
    reason = f"a {names.what} for each image, in {listed([f'{folder}/' for folder in folders], 3)}"
    return Pairs(_splits(root, list(found.values()), names), reason)


def _note_lone(root: Path, names: Names, others: Sequence[str], images: Sequence[str], collector: Collector) -> None:
    for path in others:
        collector.total += 1
        collector.add(root / path, "", f"Files without an image, left out: {names.what}s", "it has no image")
    for path in images:
        kind = f"Images without a {names.what}, not used"
        collector.add(root / path, "", kind, f"it has no {names.what}", serious=False)


def _other_key(path: str, names: Names) -> Iterator[Key]:
    """Where the image of a second file would be; nothing for any other file."""
    if os.path.splitext(path)[1].lower() not in names.suffixes:  # noqa: PTH122  (many files)
        return
    *folders, name = Path(path).parts
    stem = _bare(Path(name).stem, names)
    for at in range(len(folders) - 1, -1, -1):
        folder = folders[at].lower()
        if folder in names.folders:
            yield tuple(folders[:at] + folders[at + 1 :]), stem
            return
        if names.folder_ending and folder.endswith(names.folder_ending) and len(folder) > len(names.folder_ending):
            base = folders[at][: -len(names.folder_ending)].rstrip("_-")
            yield (*folders[:at], base, *folders[at + 1 :]), stem
            return
    if stem != Path(name).stem:
        yield _without_image_folder(folders), stem


def _image_key(path: str) -> Key:
    *folders, name = Path(path).parts
    return _without_image_folder(folders), Path(name).stem


def _without_image_folder(folders: Sequence[str]) -> tuple[str, ...]:
    for at in range(len(folders) - 1, -1, -1):
        if folders[at].lower() in IMAGE_FOLDERS:
            return tuple(folders[:at]) + tuple(folders[at + 1 :])
    return tuple(folders)


def _bare(stem: str, names: Names) -> str:
    return next((stem.removesuffix(end) for end in names.endings if stem.endswith(end) and stem != end), stem)


def _splits(root: Path, pairs: Sequence[Pair], names: Names) -> dict[str, list[Pair]]:
    """By lists of names, by folders called train, val and test, or all to train."""
    lists = {path.stem: path for path in (root / names.lists).glob("*.txt")} if names.lists else {}
    parts: dict[str, list[Pair]] = {}
    if "train" in lists:
        known = {Path(pair.image).stem: pair for pair in pairs}
        for split in SPLITS:
            if split in lists:
                words = read_text(lists[split], _LIST_LIMIT).split()
                parts[split] = [known[word] for word in words if word in known]
        return parts
    for pair in pairs:
        folders = [folder.lower() for folder in Path(pair.image).parts[:-1]]
        parts.setdefault(next((SPLIT_NAMES[one] for one in folders if one in SPLIT_NAMES), "train"), []).append(pair)
    if "train" not in parts:
        raise DataError(
            f"{root} has images with a {names.what} for {listed(parts)}, but none for training; add a train folder"
        )
    return {split: parts[split] for split in SPLITS if split in parts}


def image_size(path: Path) -> tuple[int, int] | None:
    """Height and width from the header of an image; None if it cannot be read."""
    try:
        header = header_of(path)
    except (OSError, BrokenImage):
        return None
    return header.height, header.width


def header_of(path: Path) -> Header:
    """The header of an image; BrokenImage if it has none, OSError if it cannot be read."""
    with open_regular(path) as file:
        head = file.read(_HEADER)
    try:
        return inspect(head, name=str(path))
    except BrokenImage:
        return inspect(read_bytes(path), name=str(path))
