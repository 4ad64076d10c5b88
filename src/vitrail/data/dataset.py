"""The contract of every data set: images and labels by number."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor


class Dataset(ABC):
    """Images and labels by number; the number is a sample's identity in caches, random streams and reports.

    `labels` is N int64 for one label an image, or N K float32 of zeros and ones for several.
    """

    name: str
    classes: tuple[str, ...]
    labels: Tensor
    size: tuple[int, int] | None = None  # of every image, where all are known to have one
    array: Tensor | None = None  # N C H W uint8 where all images lie in memory already; None: read one by one

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W with C = 1 or 3; BrokenImage where it cannot be decoded. Threads may share it."""

    @abstractmethod
    def where(self, index: int) -> str:
        """What a message calls a sample: its file, or its place in an array."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever the images or labels may have: names, sizes and dates of files, or a checksum."""

    def key(self, index: int) -> str:
        """A sample's name inside its data set, wherever that lies: a relative path, or a number."""
        return str(index)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, where a sample has one; BrokenImage where it cannot be read."""
        return None


class Subset(Dataset):
    """Some samples of a data set, in a given order."""

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        self.name, self.classes, self.labels = whole.name, whole.classes, whole.labels[self.indices]
        self.size, self.array = whole.size, None if whole.array is None else whole.array[self.indices]

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        return self.whole.read(self.indices[index])

    def where(self, index: int) -> str:
        """What a message calls a sample."""
        return self.whole.where(self.indices[index])

    @property
    def fingerprint(self) -> str:
        """That of the whole, and which samples."""
        return digest([self.whole.fingerprint, *map(str, self.indices)])

    def key(self, index: int) -> str:
        """A sample's name in the whole."""
        return self.whole.key(self.indices[index])

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, where a sample has one."""
        return self.whole.encoded(self.indices[index])


class Carved(Subset):
    """A part that chance has chosen: another seed chooses another, so that its whole is what is worth keeping."""


class Relabelled(Dataset):
    """A data set with other labels: the same images, the classes of another data set."""

    def __init__(self, whole: Dataset, labels: Tensor, classes: tuple[str, ...]) -> None:
        self.whole, self.name, self.labels, self.classes = whole, whole.name, labels, classes
        self.size, self.array = whole.size, whole.array

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        return self.whole.read(index)

    def where(self, index: int) -> str:
        """What a message calls a sample."""
        return self.whole.where(index)

    @property
    def fingerprint(self) -> str:
        """That of the images, and the new classes and labels."""
        return digest([self.whole.fingerprint, *self.classes, label_digest(self.labels)])

    def key(self, index: int) -> str:
        """A sample's name in the whole."""
        return self.whole.key(index)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, where a sample has one."""
        return self.whole.encoded(index)


class Splits(NamedTuple):
    """What a source of data was found to be; `notes` say in sentences what was chosen and why."""

    train: Dataset
    val: Dataset
    test: Dataset | None
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()  # folders that stand where classes do, and hold no image


class Found(NamedTuple):
    """What a reader finds in a source: its splits, as far as it has them; `split.complete` makes Splits of it."""

    train: Dataset
    val: Dataset | None = None
    test: Dataset | None = None
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()  # folders that stand where classes do, and hold no image


class Batch(NamedTuple):
    """What tasks see; images are uint8 as stored, or float after augmentation."""

    images: Tensor  # B C H W
    labels: Tensor  # B int64, or B K float32
    ids: Tensor  # B int64: the samples' numbers


def digest(parts: Iterable[str]) -> str:
    """A short checksum of texts, the same in every process."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return state.hexdigest()[:32]


def file_facts(path: Path) -> str:
    """What of a file tells that it may have changed: name, size and date; a file that is gone has none."""
    try:
        facts = path.stat()
    except OSError:
        return f"{path.name}:gone"
    return f"{path.name}:{facts.st_size}:{facts.st_mtime_ns}"


def label_digest(labels: Tensor) -> str:
    """A short checksum of labels, N or N K."""
    return hashlib.sha256(labels.contiguous().numpy().tobytes()).hexdigest()[:32]
