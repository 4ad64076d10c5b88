"""Blocks of decoded images in the order of a data set: by threads, or by processes where many cores decode many images.

Decoders and resizing leave the interpreter's lock, but what is around them does not: beyond four threads it decides.
Processes write into shared memory; they cost about two seconds to start, since each has to import torch.
"""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Retargeted, Subset
from vitrail.data.feeds.decode_pool import DecodePool, Done, Task
from vitrail.data.feeds.decoded import Answer, decode_into
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError, Unsupported

_AHEAD = 2  # blocks that are decoded while one is written
_FEW_CORES, _FEW_IMAGES = 4, 4096  # up to these, threads are as quick as processes, or quicker than their start
_LOOK = 1.0  # seconds to wait for a process at a time


@dataclass
class Block:
    """Images that follow each other, and what became of each: the size that it had, or why it cannot be read."""

    images: Tensor  # B C H W uint8; rows of broken images mean nothing
    answers: list[Answer | None]  # None: not decoded yet

    @classmethod
    def empty(cls, count: int, fit: Preprocess) -> "Block":
        """One to be filled."""
        return cls(torch.empty(count, fit.channels, *fit.image_size, dtype=torch.uint8), [None] * count)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Heights and widths of the images that could be read."""
        return [answer for answer in self.answers if isinstance(answer, tuple)]

    @property
    def broken(self) -> dict[int, str]:
        """Why images cannot be read, by row."""
        return {row: answer for row, answer in enumerate(self.answers) if isinstance(answer, str)}

    @property
    def good(self) -> Tensor:
        """The images that could be read."""
        if not (broken := self.broken):
            return self.images
        return self.images[[row for row in range(len(self.answers)) if row not in broken]]


def decode_blocks(dataset: Dataset, fit: Preprocess, *, workers: int | None, size: int) -> Iterator[Block]:
    """All images of a data set in blocks of a size."""
    workers = workers or min(32, usable_cores())
    spans = [range(start, min(start + size, len(dataset))) for start in range(0, len(dataset), size)]
    pool = _processes(dataset, fit, workers) if workers > _FEW_CORES and len(dataset) > _FEW_IMAGES else None
    if pool is None:
        yield from _by_threads(dataset, fit, spans, workers)
        return
    try:
        yield from by_processes(pool, fit, spans)
    finally:
        pool.close()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processes(dataset: Dataset, fit: Preprocess, workers: int) -> DecodePool | None:
    """Processes that decode images alone; None where a system or a data set does not allow them."""
    source = dataset
    while isinstance(source, Subset | Retargeted):
        source = source.whole
    if not type(source).__module__.startswith("vitrail."):
        return None  # a class of the user's, such as one in a script, may not be importable in another process
    try:
        return DecodePool(Retargeted(dataset, {}, {}), fit, workers=workers)
    except (DataError, Unsupported):  # it cannot be pickled; a system without fork
        return None


def by_processes(pool: DecodePool, fit: Preprocess, spans: list[range]) -> Iterator[Block]:
    """Blocks that processes decode: as many are open as keep all of them busy."""
    coming, opened, tasks = iter(spans), deque[Block](), deque[Task]()
    largest = max(map(len, spans), default=1)
    most = _AHEAD + -(-pool.capacity // largest)
    while True:
        while len(opened) < most and (span := next(coming, None)) is not None:
            opened.append(Block.empty(len(span), fit))
            for first in range(0, len(span), pool.chunk):
                rows = range(first, min(first + pool.chunk, len(span)))
                tasks.append(Task(span[first : first + pool.chunk], rows, opened[-1]))
        if not opened:
            return
        while tasks and pool.has_room:
            pool.send(tasks.popleft())
        for done in pool.receive(_LOOK):
            _fill(done)
        while opened and None not in opened[0].answers:
            yield opened.popleft()


def _fill(done: Done) -> None:
    block, first = done.task.batch, done.task.rows[0]
    assert isinstance(block, Block)  # noqa: S101  (all tasks are made here)
    count, shape = len(done.answers), block.images.shape[1:]
    block.answers[first : first + count] = done.answers
    pixels = done.pixels[:count, : shape.numel()]
    block.images[first : first + count] = pixels.view(count, *shape)


def _by_threads(dataset: Dataset, fit: Preprocess, spans: list[range], workers: int) -> Iterator[Block]:
    pending: deque[tuple[Block, list[Future[Answer]]]] = deque()

    def finished() -> Block:
        block, futures = pending.popleft()
        block.answers = [future.result() for future in futures]
        return block

    with _threads(workers) as pool:
        for span in spans:
            block = Block.empty(len(span), fit)
            rows = zip(span, block.images, strict=True)
            pending.append((block, [pool.submit(decode_into, dataset, index, fit, room) for index, room in rows]))
            if len(pending) > _AHEAD:
                yield finished()
        while pending:
            yield finished()


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    torch_threads = torch.get_num_threads()
    # Each is one of many: with threads of its own, torch would resize one image on all cores at once.
    pool = ThreadPoolExecutor(count, "decode", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(torch_threads)
