"""Data sets in memory for tests: two classes that can be told apart."""

from collections.abc import Collection

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Splits
from vitrail.errors import BrokenImage


class Made(Dataset):
    """Images N C H W in memory."""

    def __init__(self, images: Tensor, labels: Tensor, broken: Collection[int] = ()) -> None:
        self.array, self.labels, self.broken = images, labels, set(broken)
        self.name, self.classes = "made", ("dark", "light")

    def read(self, index: int) -> Tensor:
        if index in self.broken:
            raise BrokenImage(f"{self.where(index)} is broken")
        return self.array[index]

    def where(self, index: int) -> str:
        return f"image {index}"

    @property
    def fingerprint(self) -> str:
        return str(self.array.sum().item())


def photos(count: int, *, size: int = 32, channels: int = 3, broken: Collection[int] = ()) -> Made:
    """Dark images and light ones, in turn."""
    draw = torch.Generator().manual_seed(count)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 128, (count, channels, size, size), generator=draw) + 100 * labels[:, None, None, None]
    return Made(images.to(torch.uint8), labels, broken)


def grey_squares(count: int, *, size: int = 32) -> Made:
    """The same with one channel."""
    return photos(count, size=size, channels=1)


def split(train: Made, *, val: int = 12, test: int | None = None) -> Splits:
    """Train, validation and, where asked for, test images of the same kind."""
    size, channels = train.array.shape[2], train.array.shape[1]
    parts = (None if count is None else photos(count, size=size, channels=channels) for count in (val, test))
    return Splits(train, *parts, notes=("made for a test",))
