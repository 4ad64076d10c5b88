"""Images in memory that count how often each is read, and their packing."""

import torch

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.packing import pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget
from vitrail.errors import BrokenImage


class Pictures(Dataset):
    """Pictures from memory that count how often each is read."""

    def __init__(self, images, *, broken=(), fingerprint="1", name="pictures"):
        self.name, self.schema = name, {"label": ClassTarget(classes=("a", "b", "c"))}
        self.images, self.broken, self._fingerprint = images, set(broken), fingerprint
        self.targets = {"label": torch.arange(len(images)) % 3}
        self.reads = 0

    def __len__(self):
        return len(self.images)

    def read(self, index):
        self.reads += 1
        if index in self.broken:
            raise BrokenImage(f"{self.where(index)}: not an image")
        return self.images[index]

    def where(self, index):
        return f"{self.name}/{index}.png"

    @property
    def fingerprint(self):
        return self._fingerprint


class InMemory(Pictures):
    def __init__(self, images):
        super().__init__(images)
        self.array = images

    def read(self, index):
        raise AssertionError("an array needs no reading")


def noise(count, height=12, width=12, channels=3):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def packed(dataset, folder, size=(12, 12), channels=3, **options):
    return pack(dataset, Preprocess(image_size=size, channels=channels), folder=folder, workers=2, **options)
