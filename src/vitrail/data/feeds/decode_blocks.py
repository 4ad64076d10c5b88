"""Blocks of decoded images in a wanted order: by threads, or by processes where many cores decode many images.

Decoders and resizing leave the interpreter's lock, but what is around them does not: beyond four threads it decides.
Processes write into shared memory; where none was prepared, they cost seconds to start, since the first has to import
torch.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Retargeted, Subset
from vitrail.data.feeds.decode_direct import DirectPool, Into
from vitrail.data.feeds.decode_pool import DecodePool, Done, Task
from vitrail.data.feeds.decode_worker import Also
from vitrail.data.feeds.decoded import Answer, decode_into
from vitrail.data.feeds.dense import also_called
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError, Unsupported

_AHEAD = 2  # blocks that are decoded while one is written
_FEW_CORES, _FEW_IMAGES = 4, 4096  # up to these, threads are as quick as processes, or quicker than their start
_FEW_COMPUTED = 256  # the same for images that Python computes: threads make one at a time
_LOOK = 1.0  # seconds to wait for a process at a time


@dataclass
class Block:
    """Some images, and what became of each: the size that it had, or why it cannot be read."""

    indices: Sequence[int]  # their numbers in the data set
    images: Tensor  # B C H W uint8; rows of broken images mean nothing
    answers: list[Answer | None]  # None: not decoded yet
    more: list[Tensor]  # B C H W uint8 at other sizes; only rows of images of which it is wanted mean anything
    written: bool = False  # whether they are in their files already; then there are no pixels here

    @classmethod
    def empty(cls, indices: Sequence[int], fit: Preprocess, more: Sequence[Also] = ()) -> "Block":
        """One to be filled."""
        sizes = [fit, *(also.fit for also in more)]
        images, *others = (torch.empty(len(indices), one.channels, *one.image_size, dtype=torch.uint8) for one in sizes)
        return cls(indices, images, [None] * len(indices), others)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Heights and widths of the images that could be read."""
        return [answer for answer in self.answers if isinstance(answer, tuple)]

    @property
    def broken(self) -> dict[int, str]:
        """Why images cannot be read, by row."""
        return {row: answer for row, answer in enumerate(self.answers) if isinstance(answer, str)}


def decode_blocks(
    dataset: Dataset,
    fit: Preprocess,
    *,
    workers: int | None,
    size: int,
    order: Sequence[int] | None = None,
    more: Sequence[Also] = (),
    processes: bool | None = None,
) -> Iterator[Block]:
    """Images of a data set in blocks of a size: all, or those of `order` in that order.

    Each image is decoded once, whatever the number of sizes that `more` wants of it. Processes decode where many cores
    decode many images, or where `processes` says so and they can.
    """
    workers = workers or min(32, usable_cores())
    order = range(len(dataset)) if order is None else order
    spans = [order[start : start + size] for start in range(0, len(order), size)]
    bare = Retargeted(dataset, {}, {})
    pool = open_pool(bare, fit, workers=workers, count=len(order), more=more, processes=processes)
    if pool is None:
        yield from _by_threads(dataset, fit, spans, workers, more)
        return
    try:
        yield from by_processes(pool, fit, spans, more)
    finally:
        pool.close()


def decode_to_files(
    dataset: Dataset, order: Sequence[int], files: Sequence[tuple[Into, int]], *, workers: int | None
) -> Iterator[Block] | None:
    """Blocks of images that processes have written to their rows of files, which are given by their descriptors.

    None where a system or a data set does not allow processes.
    """
    if not type(source_of(dataset)).__module__.startswith("vitrail."):
        return None
    try:
        pool = DirectPool(Retargeted(dataset, {}, {}), order, files, workers=workers or min(32, usable_cores()))
    except (DataError, Unsupported):
        return None

    def blocks() -> Iterator[Block]:
        none = torch.empty(0, dtype=torch.uint8)
        try:
            for found in pool.done():
                yield Block(list(found), none, list(found.values()), [none] * (len(files) - 1), written=True)
        finally:
            pool.close()

    return blocks()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def source_of(dataset: Dataset) -> Dataset:
    """The data set that another one is a part of, or has other targets for."""
    while isinstance(dataset, Subset | Retargeted):
        dataset = dataset.whole
    return dataset


def open_pool(
    dataset: Dataset, fit: Preprocess, *, workers: int, count: int, more: Sequence[Also] = (),
    processes: bool | None = None,
) -> DecodePool | None:  # fmt: skip
    """Processes that decode `count` images with their targets, where they are quicker than threads or wanted.

    None where they are not, or where a system or a data set does not allow them.
    """
    source = source_of(dataset)
    if processes is None:
        processes = workers > _FEW_CORES and count > (_FEW_COMPUTED if source.computed else _FEW_IMAGES)
    if not processes or not type(source).__module__.startswith("vitrail."):
        return None  # a class of the user's, such as one in a script, may not be importable in another process
    try:
        return DecodePool(dataset, fit, workers=workers, more=more)
    except (DataError, Unsupported):  # it cannot be pickled; a system without fork
        return None


def by_processes(
    pool: DecodePool, fit: Preprocess, spans: Sequence[Sequence[int]], more: Sequence[Also] = ()
) -> Iterator[Block]:
    """Blocks that processes decode: as many are open as keep all of them busy."""
    coming, opened, tasks = iter(spans), deque[Block](), deque[Task]()
    largest = max(map(len, spans), default=1)
    most = _AHEAD + -(-pool.capacity // largest)
    while True:
        while len(opened) < most and (span := next(coming, None)) is not None:
            opened.append(Block.empty(span, fit, more))
            for first in range(0, len(span), pool.chunk):
                rows = range(first, min(first + pool.chunk, len(span)))
                tasks.append(Task(span[first : first + pool.chunk], rows, opened[-1]))
        if not opened:
            return
        while tasks and pool.has_room:
            pool.send(tasks.popleft())
        for done in pool.receive(_LOOK):
            _fill(pool, done, more)
        while opened and None not in opened[0].answers:
            yield opened.popleft()


def _fill(pool: DecodePool, done: Done, more: Sequence[Also]) -> None:
    block, first = done.task.batch, done.task.rows[0]
    assert isinstance(block, Block)  # noqa: S101  (all tasks are made here)
    count, decoded = len(done.answers), pool.layout.views(done.pixels)
    block.answers[first : first + count] = done.answers
    block.images[first : first + count] = decoded[""][:count]
    for number, (also, images) in enumerate(zip(more, block.more, strict=True)):
        if rows := [at for at, index in enumerate(done.task.indices) if index in also.of]:
            images[[first + at for at in rows]] = decoded[also_called(number)][rows]


def _by_threads(
    dataset: Dataset, fit: Preprocess, spans: Sequence[Sequence[int]], workers: int, more: Sequence[Also]
) -> Iterator[Block]:
    pending: deque[tuple[Block, list[Future[Answer]]]] = deque()

    def finished() -> Block:
        block, futures = pending.popleft()
        block.answers = [future.result() for future in futures]
        return block

    def submit(block: Block, row: int, index: int) -> Future[Answer]:
        rooms = [(fit, block.images[row])]
        rooms += [(also.fit, room[row]) for also, room in zip(more, block.more, strict=True) if index in also.of]
        return pool.submit(decode_into, dataset, index, rooms)

    with _threads(workers) as pool:
        for span in spans:
            block = Block.empty(span, fit, more)
            pending.append((block, [submit(block, row, index) for row, index in enumerate(span)]))
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
