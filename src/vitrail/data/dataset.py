"""The contract of every data set: images and labels by number."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Dataset(ABC):
    """Images and labels by number; the number is a sample's identity in caches, random streams and reports.

    `labels` is N int64 for one label an image, or N K float32 of zeros and ones for several.
    """

    name: str
    classes: tuple[str, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    @abstractmethod
    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W with C = 1 or 3; BrokenImage where it cannot be decoded."""

    @abstractmethod
    def where(self, index: int) -> str:
        """What a message calls a sample: its file, or its place in an array."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever the images or labels may have: names, sizes and dates of files, or a checksum."""


class Subset(Dataset):
    """Some samples of a data set, in a given order."""

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, list(indices)
        self.name, self.classes, self.labels = whole.name, whole.classes, whole.labels[self.indices]

    def read(self, index: int) -> Tensor:
        """One image, uint8, C H W."""
        return self.whole.read(self.indices[index])

    def where(self, index: int) -> str:
        """What a message calls a sample."""
        return self.whole.where(self.indices[index])

    @property
    def fingerprint(self) -> str:
        """That of the whole, and which samples."""
        return f"{self.whole.fingerprint}[{hash(tuple(self.indices))}]"


class Splits(NamedTuple):
    """What a source of data was found to be; `notes` say in sentences what was chosen and why."""

    train: Dataset
    val: Dataset
    test: Dataset | None
    notes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """What tasks see; images are uint8 as stored, or float after augmentation."""

    images: Tensor  # B C H W
    labels: Tensor  # B int64, or B K float32
    ids: Tensor  # B int64: the samples' numbers
