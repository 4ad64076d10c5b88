"""Data sets in memory for tests: two classes that can be told apart."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Splits, target_digest
from vitrail.data.targets import ClassTarget, Schema
from vitrail.errors import BrokenImage

CLASSES = {"label": ClassTarget(classes=("dark", "light"))}


class Made(Dataset):
    """Images N C H W in memory, and targets of any kind."""

    def __init__(
        self,
        images: Tensor,
        targets: Mapping[str, Tensor],
        schema: Schema | None = None,
        broken: Collection[int] = (),
    ) -> None:
        self.array, self.broken = images, set(broken)
        self.name, self.targets, self.schema = "made", dict(targets), CLASSES if schema is None else dict(schema)

    def __len__(self) -> int:
        return len(self.array)

    def read(self, index: int) -> Tensor:
        if index in self.broken:
            raise BrokenImage(f"{self.where(index)} is broken")
        return self.array[index]

    def where(self, index: int) -> str:
        return f"image {index}"

    @property
    def fingerprint(self) -> str:
        return f"{self.array.sum().item()} {target_digest(self.schema, self.targets)}"


def photos(count: int, *, size: int = 32, channels: int = 3, broken: Collection[int] = ()) -> Made:
    """Dark images and light ones, in turn."""
    draw = torch.Generator().manual_seed(count)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 128, (count, channels, size, size), generator=draw) + 100 * labels[:, None, None, None]
    return Made(images.to(torch.uint8), {"label": labels}, broken=broken)


def grey_squares(count: int, *, size: int = 32) -> Made:
    """The same with one channel."""
    return photos(count, size=size, channels=1)


def split(train: Made, *, val: int = 12, test: int | None = None) -> Splits:
    """Train, validation and, where asked for, test images of the same kind."""
    size, channels = train.array.shape[2], train.array.shape[1]
    parts = (None if count is None else photos(count, size=size, channels=channels) for count in (val, test))
    return Splits(train, *parts, notes=("made for a test",))


def clouds(count: int, *, seed: int, width: int = 12, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of several classes that overlap, with columns of very different sizes and far from zero."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, classes, (count,), generator=draw)
    features = centres[labels] + 1.2 * torch.randn(count, width, generator=draw)
    return features * torch.logspace(-2, 2, width) + 50, labels
