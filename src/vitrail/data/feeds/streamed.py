"""Streamed images: decoded again in each epoch, ahead of their use, for sets that are too large to be packed.

Order, batches and bits are those of packed images, and an epoch can start at any batch. Which images are broken is
known only when they come. In training, such an image is replaced by the next one of the epoch's order that can be
read, so that batches keep their size and follow from (seed, epoch) alone; in evaluation it is left out.
"""

import os
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.broken import Skipped, Tally
from vitrail.data.dataset import Batch, Dataset, Targets, digest
from vitrail.data.feeds.decode_pool import DecodePool, Done, Task
from vitrail.data.feeds.dense import SampleLayout
from vitrail.data.feeds.feed import Feed, ImageSet, aspect_of, geometry, moved
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError, Notice

_OPEN = 2  # batches that are decoded at the same time; more where they are too small to occupy all processes
_LOOK = 0.1  # seconds between looks whether the batches are still wanted


class Streamed(ImageSet):
    """The images of a data set, decoded when they are needed; `workers` is the number of processes that do so."""

    def __init__(
        self, dataset: Dataset, fit: Preprocess, *, tally: Tally | None = None, workers: int | None = None
    ) -> None:
        if len(dataset) == 0:
            raise DataError(f"{dataset.name} has no images")
        self.dataset, self.stored = dataset, geometry(fit)
        self.name, self.schema, self.targets = dataset.name, dataset.schema, dataset.targets
        self.ids, self.workers = torch.arange(len(dataset)), workers or default_workers()
        self.layout = SampleLayout(self.stored, self.schema)
        self._tally = tally or Tally(len(dataset))
        self._broken: dict[int, str] = {}
        self._aspects: Tensor | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def numbers(self) -> int:
        """The number of all images, those that cannot be read too."""
        return len(self.dataset)

    @property
    def skipped(self) -> Skipped:
        """The images that could not be read so far, and why."""
        return tuple((self.dataset.where(index), reason) for index, reason in sorted(self._broken.items()))

    def aspects(self, device: torch.device | str = "cpu") -> Tensor | None:
        """As of packed images; the values of a sample are filled in before the batch with it is given out."""
        if self.stored.resize == "squash" and self._aspects is None:
            self._aspects = torch.ones(len(self), device=device)
        return self._aspects

    def checksum(self) -> str:
        """Tells these images and targets from others by names, sizes and dates of files."""
        return digest([self.dataset.fingerprint, str(to_dict(self.stored))])[:16]

    def mark_broken(self, index: int, reason: str) -> None:
        """Counts an image that cannot be read; DataError where there are too many."""
        if index in self._broken:
            return
        self._broken[index], self.ids = reason, self.ids[self.ids != index]
        self._tally.add([(self.dataset.where(index), reason)])
        if len(self._broken) == 1:
            warnings.warn(f"{reason}. Broken images are skipped; the report lists them all", Notice, stacklevel=2)

    def batch(self, images: Tensor, ids: Tensor, sizes: Tensor, dense: Targets) -> Batch:
        """A batch of decoded images B C H W of these numbers B and original sizes B 2, with their targets.

        `dense` are those with a value for each pixel, which were decoded with the images.
        """
        if self._aspects is not None:
            values = aspect_of(sizes, self.stored.image_size)
            self._aspects[ids.to(self._aspects.device)] = values.to(self._aspects.device)
        plain = {name: values[ids] for name, values in self.targets.items() if name not in dense}
        found = {**moved(self.schema, plain, self.stored, sizes), **dense}
        return Batch(images, {name: found[name] for name in self.schema}, ids)


@dataclass
class _Open:
    """A batch that is being decoded: rows are filled in any order."""

    parts: Mapping[str, Tensor]  # "": images B C H W uint8; targets with a value for each pixel by name, B H W
    positions: list[int]  # in the epoch's order; beyond the first one where that was broken
    ids: list[int]  # -1: left out, or not yet known
    sizes: list[tuple[int, int]]
    left: int = field(init=False)  # rows to come

    def __post_init__(self) -> None:
        self.left = len(self.positions)


class StreamedBatches(Feed):
    """The feed of streamed images; see `Feed` for its options.

    Memory holds a few batches, whatever the size of the set. Processes start with the first batch and stay for the next
    epoch, or the next validation; all end with the feed, with an error, or with the program.
    """

    data: Streamed

    def __init__(self, data: Streamed, **options: Any) -> None:
        super().__init__(data, **options)
        self._pool: DecodePool | None = None

    def _batches(self, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        return self._ahead(self._streamed(order.tolist(), spans))

    def _streamed(self, order: Sequence[int], spans: Sequence[range]) -> Generator[Batch | None, None, None]:
        data, pool, done = self.data, self._pool, False
        pool, self._pool = pool or DecodePool(data.dataset, data.stored, workers=data.workers), None
        try:
            yield from self._decoded(pool, order, spans)
            done = True
        finally:
            if done:
                self._pool = pool
            else:
                pool.close()

    def _decoded(
        self, pool: DecodePool, order: Sequence[int], spans: Sequence[range]
    ) -> Generator[Batch | None, None, None]:
        """Batches in order; None whenever nothing has come for a while."""
        coming, opened, tasks = iter(spans), deque[_Open](), deque[Task]()
        largest = max(map(len, spans), default=0) or 1
        most = max(_OPEN, -(-pool.capacity // largest))
        while True:
            while opened and not opened[0].left:
                yield self._close(opened.popleft())
            while not tasks and len(opened) < most and (span := next(coming, None)) is not None:
                opened.append(self._open(span))
                tasks.extend(self._tasks(opened[-1], order, pool.chunk))
            if not opened:
                return
            while tasks and pool.has_room:
                pool.send(tasks.popleft())
            if opened[0].left:
                done = list(map(partial(self._fill, order), pool.receive(_LOOK)))
                tasks.extendleft(task for more in done for task in more)  # first of all: a batch waits for them
                if not done:
                    yield None

    def _open(self, span: range) -> _Open:
        count = len(span)
        parts = self.data.layout.empty(count, pinned=self.device.type == "cuda")
        return _Open(parts, list(span), [-1] * count, [(1, 1)] * count)

    @staticmethod
    def _tasks(batch: _Open, order: Sequence[int], chunk: int) -> Iterator[Task]:
        for first in range(0, len(batch.positions), chunk):
            rows = range(first, min(first + chunk, len(batch.positions)))
            yield Task([order[batch.positions[row]] for row in rows], rows, batch)

    def _fill(self, order: Sequence[int], done: Done) -> list[Task]:
        """Puts decoded images into their batch; new tasks for those that are to replace broken ones."""
        batch, more = done.task.batch, []
        decoded = self.data.layout.views(done.pixels)
        assert isinstance(batch, _Open)  # noqa: S101  (all tasks are made here)
        for at, (row, index, answer) in enumerate(zip(done.task.rows, done.task.indices, done.answers, strict=True)):
            if not isinstance(answer, str):
                for name, values in decoded.items():
                    batch.parts[name][row].copy_(values[at])
                batch.ids[row], batch.sizes[row] = index, answer
            else:
                self.data.mark_broken(index, answer)
                if self.drop_last:
                    more.append(self._replacement(batch, row, order))
                    continue
            batch.left -= 1
        return more

    def _replacement(self, batch: _Open, row: int, order: Sequence[int]) -> Task:
        """The next image of the epoch's order, or the first one after the last."""
        if len(self.data.skipped) == len(order):
            raise DataError(f"no image of {self.data.name} can be read; repair them, or add others")
        batch.positions[row] = (batch.positions[row] + 1) % len(order)
        return Task([order[batch.positions[row]]], [row], batch)

    def _close(self, batch: _Open) -> Batch:
        ids = torch.tensor(batch.ids, dtype=torch.int64)
        sizes = torch.tensor(batch.sizes, dtype=torch.int32).view(-1, 2)
        parts = dict(batch.parts)
        if not bool((kept := ids >= 0).all()):
            parts, ids, sizes = {name: values[kept] for name, values in parts.items()}, ids[kept], sizes[kept]
        return self.data.batch(parts.pop(""), ids, sizes, parts)


def default_workers() -> int:
    """The cores of this machine, shared by the processes of the run on it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
