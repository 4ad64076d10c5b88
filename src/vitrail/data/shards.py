"""WebDataset shards: tar files of {key}.jpg with {key}.cls, .txt or .json, indexed once and read at random."""

import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.data.arrays import CLASSES_FILE
from vitrail.data.dataset import Dataset, Found, Subset, digest, file_facts, label_digest
from vitrail.data.decode import SUFFIXES, decode
from vitrail.data.folder import SPLIT_NAMES, natural
from vitrail.data.joined import joined_by
from vitrail.errors import BrokenImage, DataError

_BLOCK = 512
_LABEL_SUFFIXES = ("cls", "json", "txt")
_LABEL_KEYS = ("label", "cls", "class", "labels", "classes")
_LONG_NAME, _PAX = b"L", b"x"


class Member(NamedTuple):
    """One file in a tar: its name and where its bytes lie."""

    name: str
    offset: int
    size: int


class Place(NamedTuple):
    """Where an image's bytes lie."""

    shard: int
    key: str
    offset: int
    size: int


class Shards(Dataset):
    """Images in tar files; each is read by one seek, so that no archive is ever unpacked."""

    def __init__(
        self, shards: Sequence[Path], places: Sequence[Place], labels: Tensor, classes: tuple[str, ...], *, name: str
    ) -> None:
        self.shards, self.places, self.labels, self.classes, self.name = list(shards), places, labels, classes, name

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W; BrokenImage where it cannot be decoded."""
        return decode(self.encoded(index), name=self.where(index))

    def where(self, index: int) -> str:
        """The shard, and the key in it."""
        place = self.places[index]
        return f"{self.shards[place.shard]}:{place.key}"

    @property
    def fingerprint(self) -> str:
        """Names, sizes and dates of the shards, and the labels."""
        return digest([*map(file_facts, self.shards), *self.classes, label_digest(self.labels)])

    def key(self, index: int) -> str:
        """The shard's name, and the key in it."""
        place = self.places[index]
        return f"{self.shards[place.shard].name}:{place.key}"

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        place = self.places[index]
        try:
            with self.shards[place.shard].open("rb") as file:
                file.seek(place.offset)
                return file.read(place.size)
        except OSError as error:
            raise BrokenImage(f"{self.where(index)} cannot be read: {error.strerror or error}") from error


def expand(pattern: str) -> list[str]:
    """Paths of a brace pattern: a-{000..002}.tar and a-{x,y}.tar; a text without braces is itself."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    if steps := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", match[1]):
        first, last = int(steps[1]), int(steps[2])
        if last < first:
            raise DataError(f"{pattern} counts from {first} down to {last}; write the lower number first")
        middles = [str(number).zfill(len(steps[1])) for number in range(first, last + 1)]
    else:
        middles = match[1].split(",")
    return [path for middle in middles for path in expand(pattern[: match.start()] + middle + pattern[match.end() :])]


def members(path: Path) -> list[Member]:
    """The files in a tar, from its headers alone; long names by GNU and by POSIX are known."""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                raise DataError(f"{path} is compressed, so single images cannot be reached in it; gunzip it first")
            file.seek(0, 2)
            if file.tell() == 0:
                raise DataError(f"{path} is empty (0 bytes); fetch it again")
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
            raise DataError(f"{path} is truncated: a file at byte {at:,} has {size:,} bytes; fetch it again")
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
        raise DataError(f"{path} is truncated: it ends inside of a header; fetch it again")


def _header(header: bytes, path: Path, at: int) -> int:
    """The size that a header states; its checksum must be right."""
    try:
        stated = int(header[148:156].strip(b" \0"), 8)
        size = int.from_bytes(header[125:136], "big") if header[124] & 0x80 else int(header[124:136].strip(b" \0"), 8)
    except ValueError:
        stated, size = -1, 0
    if stated != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise DataError(f"{path} is no tar file, or damaged at byte {at:,}; fetch it again")
    return size


def _name(header: bytes) -> str:
    name, prefix = header[:100].split(b"\0", 1)[0], header[345:500].split(b"\0", 1)[0]
    whole = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return whole.decode("utf-8", "surrogateescape")


def _pax_path(data: bytes) -> str | None:
    match = re.search(rb"(?:^|\n)[0-9]+ path=([^\n]*)\n", data)
    return match[1].decode("utf-8", "surrogateescape") if match else None


def find_shards(source: str | Path) -> list[Path]:
    """The tar files that a folder, a brace pattern, a glob or a path names."""
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
        raise DataError(f"{text} names no shard")
    return found


def read_shards(source: str | Path) -> Found:
    """Splits of shards: by names that begin with train, val or test, or else one part."""
    shards = find_shards(source)
    places: list[Place] = []
    labels: list[Any] = []
    without_image = 0
    for number, shard in enumerate(shards):
        for place, label in _samples(shard, number):
            if place is None:
                without_image += 1
            else:
                places.append(place)
                labels.append(label)
    if not places:
        raise DataError(f"{source} holds no images; its shards should hold {{key}}.jpg with {{key}}.cls")
    marks, classes = _labels(labels, places, shards)
    whole = Shards(shards, places, marks, classes, name=str(source))
    notes = [f"{source} has {len(places):,} images in {len(shards)} shards, {len(classes)} classes."]
    if without_image:
        notes.append(f"Keys without an image are left out: {without_image:,}.")
    parts: dict[str, list[int]] = {}
    for index, place in enumerate(places):
        parts.setdefault(_split_of(shards[place.shard]), []).append(index)
    if "train" not in parts or len(parts) == 1:
        return Found(whole, notes=tuple(notes))
    subsets = {split: Subset(whole, indices) for split, indices in parts.items()}
    if "" in subsets:
        notes.append(f"Images in shards that are named after no split are left out: {len(subsets['']):,}.")
    return Found(subsets["train"], subsets.get("val"), subsets.get("test"), tuple(notes))


def _split_of(shard: Path) -> str:
    match = re.match(r"[a-z]+", shard.name.lower())
    return SPLIT_NAMES.get(match[0], "") if match else ""


def _samples(shard: Path, number: int) -> Iterator[tuple[Place | None, Any]]:
    """Places and labels; None for a key without an image."""
    grouped: dict[str, dict[str, Member]] = {}
    for member in members(shard):
        folder, slash, name = member.name.rpartition("/")
        stem, _, suffix = name.partition(".")
        if not stem:  # hidden files
            continue
        group = grouped.setdefault(folder + slash + stem, {})
        if suffix.lower() in group:
            raise DataError(f"{shard} has {member.name} twice; each key may occur once in a shard")
        group[suffix.lower()] = member
    with shard.open("rb") as file:
        for key, group in grouped.items():
            image = next((group[suffix] for suffix in group if f".{suffix}" in SUFFIXES), None)
            if image is None:
                yield None, None
                continue
            suffix = next((suffix for suffix in _LABEL_SUFFIXES if suffix in group), "")
            if not suffix:
                raise DataError(f"{shard}: {key} has an image but no label; add {key}.cls, .txt or .json")
            file.seek(group[suffix].offset)
            label = _label(file.read(group[suffix].size), suffix, f"{shard}: {key}.{suffix}")
            yield Place(number, key, image.offset, image.size), label


def _label(data: bytes, suffix: str, where: str) -> int | str | list[int | str]:
    """A class number, a class name, or a list of either."""
    try:
        text = data.decode("utf-8").strip()
        if suffix == "txt" and text:
            return text
        if suffix == "cls":
            return int(text)
        loaded = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is no label: {data[:40]!r}") from error
    if isinstance(loaded, dict):
        loaded = next((loaded[key] for key in _LABEL_KEYS if key in loaded), None)
    several = isinstance(loaded, list) and all(isinstance(item, int | str) for item in loaded)
    if isinstance(loaded, bool) or not (several or isinstance(loaded, int | str)):
        raise DataError(f"{where} is no label: {data[:40]!r}; a number, a name, a list, or an object with a label")
    return loaded


def _labels(found: Sequence[Any], places: Sequence[Place], shards: Sequence[Path]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels N or N K, and the classes: those of classes.txt beside the shards, or those that occur."""
    _refuse_joined(found, places, shards)
    several = any(isinstance(label, list) for label in found)
    listed = [label if isinstance(label, list) else [label] for label in found]
    flat = {item for labels in listed for item in labels}
    file = shards[0].parent / CLASSES_FILE
    if file.exists():
        classes = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    elif all(isinstance(item, int) for item in flat):
        classes = tuple(str(number) for number in range(max(flat, default=-1) + 1))
    else:
        classes = tuple(sorted(map(str, flat), key=natural))
    position: dict[int | str, int] = {name: index for index, name in enumerate(classes)}
    position |= {index: index for index in range(len(classes))} if all(isinstance(i, int) for i in flat) else {}
    for place, labels in zip(places, listed, strict=True):
        for item in labels:
            if item not in position and str(item) not in position:
                raise DataError(
                    f"{shards[place.shard]}: {place.key} has the label {item!r}, which is out of range; there are "
                    f"{len(classes)} classes, counted from 0"
                )
    rows = [[position.get(item, position.get(str(item), -1)) for item in labels] for labels in listed]
    if not several:
        return torch.tensor([row[0] for row in rows], dtype=torch.int64), classes
    marks = torch.zeros(len(rows), len(classes))
    for index, row in enumerate(rows):
        marks[index, row] = 1.0
    return marks, classes


def _refuse_joined(found: Sequence[Any], places: Sequence[Place], shards: Sequence[Path]) -> None:
    """DataError where a text holds several labels that would become one class."""
    if (joined := joined_by([label for label in found if isinstance(label, str)], several=False)) is None:
        return
    place = places[found.index(joined[0])]
    raise DataError(
        f"{shards[place.shard]}: {place.key} has the label {joined[0]!r}, which would be one class; for several labels "
        f"write a list in {place.key}.json (where it is one class, give it a name without {joined[1]})"
    )
