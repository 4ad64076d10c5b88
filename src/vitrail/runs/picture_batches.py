"""Pictures of a data set at their own sizes, one after the other, with targets in their pixels."""

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from vitrail.data.broken import Tally
from vitrail.data.dataset import Batch, Dataset
from vitrail.data.feeds.dense import fitted
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage, Notice

_AHEAD = 4  # pictures that are decoded while one is worked on


class PictureBatches:
    """Batches of one picture, uint8 1 C H W; `skipped` names those that cannot be read."""

    def __init__(self, dataset: Dataset, *, device: torch.device | str = "cpu") -> None:
        self.dataset, self.device, self.waited = dataset, device, 0.0
        self._tally = Tally(len(dataset))

    @property
    def data(self) -> "PictureBatches":
        """What is fed: itself."""
        return self

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.dataset.name

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The pictures that could not be read so far, and why."""
        return tuple(self._tally.found.items())

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All pictures that can be read, in their order; DataError where too many cannot."""
        with ThreadPoolExecutor(_AHEAD) as pool:
            for first in range(0, len(self.dataset), _AHEAD):
                numbers = range(first, min(first + _AHEAD, len(self.dataset)))
                began = time.perf_counter()
                read = list(pool.map(self._read, numbers))
                self.waited += time.perf_counter() - began
                for index, found in zip(numbers, read, strict=True):
                    if isinstance(found, Batch):
                        yield found
                    else:
                        self._skip(index, str(found))

    def _skip(self, index: int, reason: str) -> None:
        if not self._tally.found:
            warnings.warn(f"{reason}. Broken images are skipped; the report lists them all", Notice, stacklevel=3)
        self._tally.add([(self.dataset.where(index), reason)])

    def _read(self, index: int) -> Batch | BrokenImage:
        """A picture with targets that were moved by nothing, or why there is none."""
        try:
            picture, targets = self.dataset.read(index), {}
            size = (picture.shape[1], picture.shape[2])
            still = Preprocess(image_size=size, channels=picture.shape[0], resize="squash")
            for name, target in self.dataset.schema.items():
                value = self.dataset.targets[name][index]
                if target.dense is not None:
                    moved = fitted(target, value, size, still, image=self.dataset.where(index))
                else:
                    moved = target.move(value[None], still.maps(torch.tensor([size])), size)[0]
                targets[name] = moved[None]
        except BrokenImage as error:
            return error
        return Batch(picture[None], targets, torch.tensor([index]))
