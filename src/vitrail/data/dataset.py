"""The contract of every dataset: images and targets by index."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.findings import NO_FINDINGS, Findings
from vitrail.data.targets import Schema
from vitrail.files import raise_machine_fault

Targets = Mapping[str, Tensor]


class Dataset(ABC):
    """Images and targets by index; the index identifies a sample in caches, random streams and reports.

    `targets` holds the values N ... of each field of the schema; both are empty for unlabelled images.
    """

    name: str
    schema: Schema
    targets: Targets
    size: tuple[int, int] | None = None  # of every image, if all are known to have the same
    array: Tensor | None = None  # N C H W uint8 if all images are in memory; None: read one by one
    computed: bool = False  # whether Python computes images and targets, so that threads do not share the work
    groups: Sequence[str] | None = None  # which images belong together, such as those of one patient; None: not known

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W with C = 1 or 3; BrokenImage if it cannot be decoded. Thread-safe."""

    @abstractmethod
    def where(self, index: int) -> str:
        """The name of a sample in messages: its file, or its position in an array."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes if the images or targets may have changed: names, sizes and dates of files, or a checksum."""

    @property
    def image_fingerprint(self) -> str:
        """Changes whenever the images may have: what a packed file is recognised by, whatever the targets."""
        return self.fingerprint

    def key(self, index: int) -> str:
        """The name of a sample within its dataset, wherever that is stored: a relative path, or a number."""
        return str(index)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, if there is one; BrokenImage if it cannot be read."""
        return None


class Subset(Dataset):
    """Some samples of a dataset, in a given order."""

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        self.name, self.schema = whole.name, whole.schema
        self.targets = {name: values[self.indices] for name, values in whole.targets.items()}
        self.size, self.array = whole.size, None if whole.array is None else whole.array[self.indices]
        self.groups = None if whole.groups is None else [whole.groups[index] for index in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        return self.whole.read(self.indices[index])

    def where(self, index: int) -> str:
        """The name of a sample in messages."""
        return self.whole.where(self.indices[index])

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the whole dataset and the indices."""
        return digest([self.whole.fingerprint, *map(str, self.indices)])

    @property
    def image_fingerprint(self) -> str:
        """The fingerprint of the whole dataset's images and the indices."""
        return digest([self.whole.image_fingerprint, *map(str, self.indices)])

    def key(self, index: int) -> str:
        """The name of a sample within the whole dataset."""
        return self.whole.key(self.indices[index])

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, if there is one."""
        return self.whole.encoded(self.indices[index])


class RandomSubset(Subset):
    """A randomly chosen part; another seed chooses another one, so caches store the whole dataset.

    `fold` (i, k) is that of k folds which the part belongs to.
    """

    def __init__(self, whole: Dataset, indices: Sequence[int], *, fold: tuple[int, int] | None = None) -> None:
        super().__init__(whole, indices)
        self.fold = fold


class Retargeted(Dataset):
    """The same images with other targets."""

    def __init__(self, whole: Dataset, targets: Targets, schema: Schema) -> None:
        self.whole, self.name, self.targets, self.schema = whole, whole.name, targets, schema
        self.size, self.array, self.groups = whole.size, whole.array, whole.groups

    def __len__(self) -> int:
        return len(self.whole)

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        return self.whole.read(index)

    def where(self, index: int) -> str:
        """The name of a sample in messages."""
        return self.whole.where(index)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the images and the new targets."""
        return digest([self.whole.fingerprint, target_digest(self.schema, self.targets)])

    @property
    def image_fingerprint(self) -> str:
        """The fingerprint of the images."""
        return self.whole.image_fingerprint

    def key(self, index: int) -> str:
        """The name of a sample within the whole dataset."""
        return self.whole.key(index)

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, if there is one."""
        return self.whole.encoded(index)


class Joined(Dataset):
    """The samples of two datasets with the same schema, one after the other."""

    def __init__(self, first: Dataset, second: Dataset) -> None:
        self.parts = (first, second)
        self.name, self.schema = first.name, first.schema
        self.targets = {name: _stacked(values, second.targets[name]) for name, values in first.targets.items()}
        self.size = first.size if first.size == second.size else None
        if first.groups is not None and second.groups is not None:
            self.groups = [*first.groups, *second.groups]
        if first.array is not None and second.array is not None and first.array.shape[1:] == second.array.shape[1:]:
            self.array = torch.cat([first.array, second.array])

    def _part(self, index: int) -> tuple[Dataset, int]:
        first, second = self.parts
        return (first, index) if index < len(first) else (second, index - len(first))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        part, index = self._part(index)
        return part.read(index)

    def where(self, index: int) -> str:
        """The name of a sample in messages."""
        part, index = self._part(index)
        return part.where(index)

    @property
    def fingerprint(self) -> str:
        """The fingerprints of both datasets."""
        return digest(["joined", *(part.fingerprint for part in self.parts)])

    @property
    def image_fingerprint(self) -> str:
        """The fingerprints of the images of both datasets."""
        return digest(["joined", *(part.image_fingerprint for part in self.parts)])

    def key(self, index: int) -> str:
        """The name of a sample within its dataset, and whether it is of the second."""
        part, index = self._part(index)
        return part.key(index) + ("" if part is self.parts[0] else " (2)")

    def encoded(self, index: int) -> bytes | None:
        """The bytes of the image file, if there is one."""
        part, index = self._part(index)
        return part.encoded(index)


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    """Values N ... and M ... -> N+M ...; references to files are padded to the longer ones."""
    if first.ndim == 2 and (more := first.shape[1] - second.shape[1]):
        first, second = (torch.nn.functional.pad(one, (0, max(by, 0))) for one, by in ((first, -more), (second, more)))
    return torch.cat([first, second])


class Splits(NamedTuple):
    """The splits of a source; `notes` say what was chosen and why."""

    train: Dataset
    val: Dataset
    test: Dataset | None
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()  # class or split folders without an image
    findings: Findings = NO_FINDINGS  # what is wrong in annotation files


class Found(NamedTuple):
    """The splits that a source has on disk; `split.complete` makes Splits of them."""

    train: Dataset
    val: Dataset | None = None
    test: Dataset | None = None
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()  # class or split folders without an image
    findings: Findings = NO_FINDINGS  # what is wrong in annotation files


class Batch(NamedTuple):
    """What tasks get; images are uint8 as stored, or float after augmentation."""

    images: Tensor  # B C H W
    targets: Targets  # B ... by the names of the schema's fields
    ids: Tensor  # B int64: the indices of the samples

    def tensors(self) -> list[Tensor]:
        """All tensors in a fixed order; `with_tensors` is the inverse."""
        return [self.images, *self.targets.values(), self.ids]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Batch":
        """A batch of the same fields with these tensors, in the order of `tensors`."""
        images, *values, ids = tensors
        return Batch(images, dict(zip(self.targets, values, strict=True)), ids)


def digest(parts: Iterable[str]) -> str:
    """A short checksum of strings, the same in every process."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return state.hexdigest()[:32]


def file_facts(path: Path) -> str:
    """Name, size and date of a file, which show whether it changed."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:  # a ValueError for a null character
        if isinstance(error, OSError):
            raise_machine_fault(error, path)
        return f"{path.name}:missing"
    return f"{path.name}:{facts.st_size}:{facts.st_mtime_ns}"


def target_digest(schema: Schema, targets: Targets) -> str:
    """A short checksum of a schema and its values."""
    state = hashlib.sha256()
    for name, target in schema.items():
        state.update(f"{name} {target!r}".encode())
        state.update(targets[name].contiguous().numpy().tobytes())
    return state.hexdigest()[:32]
