"""WebDataset shards: tar files of {key}.jpg with {key}.cls, .txt or .json, indexed once and read at random."""

import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found, Subset, Targets, digest, file_facts, target_digest
from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.natural import natural
from vitrail.data.sources.arrays import CLASSES_FILE, array_target, numbered_classes
from vitrail.data.sources.folder import SPLIT_NAMES
from vitrail.data.targets import Schema
from vitrail.data.targets.joined import joined_by
from vitrail.errors import BrokenImage, DataError
from vitrail.files import open_regular, read_bytes, read_text

_BLOCK = 512
_LABEL_SUFFIXES = ("cls", "json", "txt")
_LABEL_LIMIT = 1 << 20  # bytes
_LABEL_KEYS = ("label", "cls", "class", "labels", "classes")
_LONG_NAME, _PAX = b"L", b"x"
_EXPECTED = {
    "cls": "a class number",
    "txt": "a class name",
    "json": "a number, a name, a list of these, or an object with a label",
}


class Member(NamedTuple):
    """One file in a tar: its name and where its bytes are."""

    name: str
    offset: int
    size: int


class Location(NamedTuple):
    """Where the bytes of an image are."""

    shard: int
    key: str
    offset: int
    size: int


class Shards(Dataset):
    """Images in tar files; each is read with one seek, without unpacking."""

    def __init__(
        self, shards: Sequence[Path], locations: Sequence[Location], targets: Targets, schema: Schema, *, name: str
    ) -> None:
        self.shards, self.locations, self.targets, self.schema, self.name = (
            list(shards),
            locations,
            targets,
            schema,
            name,
        )

    def __len__(self) -> int:
        return len(self.locations)

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W; BrokenImage if it cannot be decoded."""
        return decode(self.encoded(index), name=self.where(index))

    def where(self, index: int) -> str:
        """The path of the shard and the key in it."""
        location = self.locations[index]
        return f"{self.shards[location.shard]}:{location.key}"

    @property
    def fingerprint(self) -> str:
        """Names, sizes and dates of the shards, and the targets."""
        return digest([self.image_fingerprint, target_digest(self.schema, self.targets)])

    @property
    def image_fingerprint(self) -> str:
        """Names, sizes and dates of the shards."""
        return digest(map(file_facts, self.shards))

    def key(self, index: int) -> str:
        """The name of the shard and the key in it."""
        location = self.locations[index]
        return f"{self.shards[location.shard].name}:{location.key}"

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        location = self.locations[index]
        try:
            return read_bytes(self.shards[location.shard], start=location.offset, length=location.size)
        except OSError as error:
            raise BrokenImage(f"{self.where(index)} cannot be read: {error.strerror or error}") from error


def expand(pattern: str) -> list[str]:
    """The paths of a brace pattern such as a-{000..002}.tar or a-{x,y}.tar."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    if steps := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", match[1]):
        first, last = int(steps[1]), int(steps[2])
        if last < first:
            raise DataError(f"{pattern} counts down from {first} to {last}; write the lower number first")
        middles = [str(number).zfill(len(steps[1])) for number in range(first, last + 1)]
    else:
        middles = match[1].split(",")
    return [path for middle in middles for path in expand(pattern[: match.start()] + middle + pattern[match.end() :])]


def members(path: Path) -> list[Member]:
    """The files in a tar, read from its headers; GNU and POSIX long names are supported."""
    try:
        with open_regular(path) as file:
            if file.read(2) == b"\x1f\x8b":
                raise DataError(f"{path} is compressed, so images in it cannot be read at random; gunzip it first")
            file.seek(0, 2)
            if file.tell() == 0:
                raise DataError(f"{path} is empty (0 bytes); download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return list(_scan(view, path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _scan(view: mmap.mmap, path: Path) -> Iterator[Member]:
    at, long_name = 0, None
    while at + _BLOCK <= len(view):
        header = view[at : at + _BLOCK]
        if not any(header):
            return
        size, kind = _header(header, path, at), header[156:157]
        start = at + _BLOCK
        if start + size > len(view):
            raise DataError(f"{path} is truncated: a file at byte {at:,} has {size:,} bytes; download it again")
        if kind == _LONG_NAME:
            long_name = view[start : start + size].rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == _PAX:
            long_name = _pax_path(view[start : start + size]) or long_name
        else:
            if kind in (b"0", b"\0", b"7"):
                yield Member(long_name or _name(header), start, size)
            long_name = None
        at = start + -(-size // _BLOCK) * _BLOCK
    if at < len(view) and any(view[at:]):
        raise DataError(f"{path} is truncated: it ends inside a header; download it again")


def _header(header: bytes, path: Path, at: int) -> int:
    """The file size in a header; DataError if its checksum is wrong."""
    try:
        stated = int(header[148:156].strip(b" \0"), 8)
        size = int.from_bytes(header[125:136], "big") if header[124] & 0x80 else int(header[124:136].strip(b" \0"), 8)
    except ValueError:
        stated, size = -1, 0
    if stated != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise DataError(f"{path} is not a tar file, or is damaged at byte {at:,}; download it again")
    return size


def _name(header: bytes) -> str:
    name, prefix = header[:100].split(b"\0", 1)[0], header[345:500].split(b"\0", 1)[0]
    whole = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return whole.decode("utf-8", "surrogateescape")


def _pax_path(data: bytes) -> str | None:
    match = re.search(rb"(?:^|\n)[0-9]+ path=([^\n]*)\n", data)
    return match[1].decode("utf-8", "surrogateescape") if match else None


def find_shards(source: str | Path) -> list[Path]:
    """The tar files of a folder, a brace pattern, a glob or a path."""
    text = str(source)
    if Path(text).is_dir():
        return sorted(Path(text).glob("*.tar"), key=lambda path: natural(path.name))
    found: list[Path] = []
    for part in expand(text):
        path = Path(part).expanduser()
        if any(sign in path.name for sign in "*?["):
            found += sorted(path.parent.glob(path.name), key=lambda path: natural(path.name))
        else:
            found.append(path)
    if missing := [path for path in found if not path.is_file()]:
        raise DataError(f"{missing[0]} does not exist ({len(missing)} of {len(found)} shards of {text} are missing)")
    if not found:
        raise DataError(f"no shard matches {text}")
    return found


def read_shards(source: str | Path) -> Found:
    """The splits of shards, by file names that begin with train, val or test; otherwise all in train."""
    shards = find_shards(source)
    locations: list[Location] = []
    labels: list[Any] = []
    without_image = 0
    for number, shard in enumerate(shards):
        for location, label in _samples(shard, number):
            if location is None:
                without_image += 1
            else:
                locations.append(location)
                labels.append(label)
    if not locations:
        raise DataError(f"{source} has no images; expected {{key}}.jpg with {{key}}.cls in the shards")
    targets, schema = _targets(labels, locations, shards)
    whole = Shards(shards, locations, targets, schema, name=str(source))
    described = ", ".join(target.describe() for target in schema.values()) or "no labels"
    notes = [f"{source} has {len(locations):,} images in {len(shards)} shards, {described}."]
    if without_image:
        notes.append(f"Keys without an image are ignored: {without_image:,}.")
    parts: dict[str, list[int]] = {}
    for index, location in enumerate(locations):
        parts.setdefault(_split_of(shards[location.shard]), []).append(index)
    if "train" not in parts or len(parts) == 1:
        return Found(whole, notes=tuple(notes))
    subsets = {split: Subset(whole, indices) for split, indices in parts.items()}
    if "" in subsets:
        notes.append(f"Images in shards whose names are not of a split are ignored: {len(subsets['']):,}.")
    return Found(subsets["train"], subsets.get("val"), subsets.get("test"), tuple(notes))


def _split_of(shard: Path) -> str:
    match = re.match(r"[a-z]+", shard.name.lower())
    return SPLIT_NAMES.get(match[0], "") if match else ""


def _samples(shard: Path, number: int) -> Iterator[tuple[Location | None, Any]]:
    """Locations and labels; None for a key without an image."""
    grouped: dict[str, dict[str, Member]] = {}
    for member in members(shard):
        folder, slash, name = member.name.rpartition("/")
        stem, _, suffix = name.partition(".")
        if not stem:  # hidden files
            continue
        group = grouped.setdefault(folder + slash + stem, {})
        if suffix.lower() in group:
            raise DataError(f"{shard} has {member.name} twice; a key may occur only once in a shard")
        group[suffix.lower()] = member
    with open_regular(shard) as file:
        for key, group in grouped.items():
            image = next((group[suffix] for suffix in group if f".{suffix}" in SUFFIXES), None)
            if image is None:
                yield None, None
                continue
            suffix = next((suffix for suffix in _LABEL_SUFFIXES if suffix in group), "")
            if not suffix:
                yield Location(number, key, image.offset, image.size), None
                continue
            file.seek(group[suffix].offset)
            label = _label(file.read(min(group[suffix].size, _LABEL_LIMIT)), suffix, f"{shard}: {key}.{suffix}")
            yield Location(number, key, image.offset, image.size), label


def _label(data: bytes, suffix: str, where: str) -> int | str | list[int | str]:
    """A class number, a class name, or a list of either."""
    try:
        text = data.decode("utf-8").strip()
        if suffix == "txt" and text:
            return text
        if suffix == "cls":
            return int(text)
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not a label: {data[:40]!r}; expected {_EXPECTED[suffix]}") from error
    if isinstance(loaded, dict):
        loaded = next((loaded[key] for key in _LABEL_KEYS if key in loaded), None)
    several = isinstance(loaded, list) and all(isinstance(item, int | str) for item in loaded)
    if isinstance(loaded, bool) or not (several or isinstance(loaded, int | str)):
        raise DataError(f"{where} is not a label: {data[:40]!r}; expected {_EXPECTED[suffix]}")
    return loaded


def _targets(stored: Sequence[Any], locations: Sequence[Location], shards: Sequence[Path]) -> tuple[Targets, Schema]:
    """The targets of all samples; none if no sample has a label."""
    missing = [location for location, label in zip(locations, stored, strict=True) if label is None]
    if len(missing) == len(locations):
        return {}, {}
    if missing:
        raise DataError(
            f"{shards[missing[0].shard]}: {missing[0].key} has an image but no label, while others have one; add "
            f"{missing[0].key}.cls, .txt or .json"
        )
    return array_target(*_labels(stored, locations, shards))


def _labels(
    stored: Sequence[Any], locations: Sequence[Location], shards: Sequence[Path]
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels N or N K, and the classes: from classes.txt beside the shards, or all that occur."""
    _refuse_joined(stored, locations, shards)
    several = any(isinstance(label, list) for label in stored)
    listed = [label if isinstance(label, list) else [label] for label in stored]
    flat = {item for labels in listed for item in labels}
    file = shards[0].parent / CLASSES_FILE
    if file.exists():
        classes = tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    elif all(isinstance(item, int) for item in flat):
        classes = numbered_classes(max(flat, default=-1))
    else:
        classes = tuple(sorted(map(str, flat), key=natural))
    position: dict[int | str, int] = {name: index for index, name in enumerate(classes)}
    position |= {index: index for index in range(len(classes))} if all(isinstance(i, int) for i in flat) else {}
    for location, labels in zip(locations, listed, strict=True):
        for item in labels:
            if item not in position and str(item) not in position:
                raise DataError(
                    f"{shards[location.shard]}: {location.key} has the label {item!r}, out of range; there are "
                    f"{len(classes)} classes, counted from 0"
                )
    rows = [[position.get(item, position.get(str(item), -1)) for item in labels] for labels in listed]
    if not several:
        return torch.tensor([row[0] for row in rows], dtype=torch.int64), classes
    marks = torch.zeros(len(rows), len(classes))
    for index, row in enumerate(rows):
        marks[index, row] = 1.0
    return marks, classes


def _refuse_joined(stored: Sequence[Any], locations: Sequence[Location], shards: Sequence[Path]) -> None:
    """DataError if a text holds several labels that would become one class."""
    if (joined := joined_by([label for label in stored if isinstance(label, str)], several=False)) is None:
        return
    location = locations[stored.index(joined[0])]
    raise DataError(
        f"{shards[location.shard]}: {location.key} has the label {joined[0]!r}, which looks like several; "
        f"for several labels, write a list in {location.key}.json (if it is one class, rename it without {joined[1]})"
    )
