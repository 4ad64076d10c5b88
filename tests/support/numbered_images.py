"""A data set for tests of processes, which must be able to import it: images whose every pixel is their number."""

import os
import signal
import time
from collections.abc import Collection

import torch

from vitrail.data.dataset import Dataset
from vitrail.errors import BrokenImage


class Numbered(Dataset):
    """Images whose every pixel is their number; some are broken, and one may end the process that reads it."""

    name = "numbered"

    def __init__(self, count: int, broken: Collection[int] = (), deadly: int | None = None, slow: float = 0.0) -> None:
        self.count, self.broken, self.deadly, self.slow = count, set(broken), deadly, slow
        self.schema, self.targets = {}, {}

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> torch.Tensor:
        time.sleep(self.slow)
        if index in self.broken:
            raise BrokenImage(f"{self.where(index)} is broken")
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3, 4, 4), index % 256, dtype=torch.uint8)

    def where(self, index: int) -> str:
        return f"image {index}"

    @property
    def fingerprint(self) -> str:
        return f"{self.count}"


class Failing(Numbered):
    """Reading fails by a bug."""

    def read(self, index: int) -> torch.Tensor:
        raise ZeroDivisionError("a bug")


class Unreadable(Numbered):
    """Can be pickled, but not read again."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return __import__, ("a_module_that_is_not_there",)
