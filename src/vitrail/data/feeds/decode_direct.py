"""Processes that decode images right into their rows of files, and take their work from a list by themselves.

The program that trains meanwhile only looks at the marks that they make: with pixels and messages to pass on, its
thread would wait for the interpreter's lock, which the training holds, several times for each image.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.decode_crew import Crew, shared_memory
from vitrail.data.feeds.decode_worker import Failure
from vitrail.data.feeds.decoded import Answer, decode_into
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

_CHUNK = 8  # images that a process takes from the list at once
_LOOK = 0.01  # seconds between looks at the marks
_WRITTEN, _BROKEN = 1, 2  # marks; 0: not decoded yet
_NUMBER = ctypes.sizeof(ctypes.c_uint32)


class Into(NamedTuple):
    """A file for some images: how they are fitted, and the row of each; None where that is its number."""

    fit: Preprocess
    rows: Mapping[int, int] | None


class Broken(NamedTuple):
    """An image that cannot be read."""

    image: int
    reason: str


class Unwritten(NamedTuple):
    """The error of a file that cannot be written."""

    number: int | None
    message: str


class Over(NamedTuple):
    """The last word of a process: the list is empty."""


@dataclass(frozen=True, kw_only=True)
class DirectJob:
    """What all processes work on: images in the order of a list, each into all files that want it."""

    dataset: Dataset
    order: Tensor  # M int64
    files: Sequence[Into]

    @property
    def state_bytes(self) -> int:
        """Of the shared memory: the sizes of all images of the data set, and their marks."""
        return len(self.dataset) * (2 * _NUMBER + 1)

    def state(self, memory: int) -> tuple[Tensor, Tensor]:
        """The shared memory of a file descriptor: sizes N 2 int32 and marks N uint8."""
        mapped, count = mmap.mmap(memory, self.state_bytes), len(self.dataset)
        sizes = torch.frombuffer(mapped, dtype=torch.int32, count=2 * count).view(count, 2)
        return sizes, torch.frombuffer(mapped, dtype=torch.uint8, offset=2 * _NUMBER * count)

    def opened(self, descriptors: Sequence[int]) -> Callable[[int, Connection], None]:
        """See `AnyJob`: shared memory, the list, and the files."""
        memory, numbers, *files = descriptors
        sizes, marks = self.state(memory)

        def serve(_: int, channel: Connection) -> None:
            try:
                self._serve(channel, numbers, files, sizes, marks)
                channel.send(Over())
            except (EOFError, BrokenPipeError):  # the program has ended
                return

        return serve

    def _serve(self, channel: Connection, numbers: int, files: Sequence[int], sizes: Tensor, marks: Tensor) -> None:
        rooms = [torch.empty(into.fit.channels, *into.fit.image_size, dtype=torch.uint8) for into in self.files]
        while not channel.poll() and (chunk := os.read(numbers, _NUMBER)):  # all processes share the place in the list
            first = int.from_bytes(chunk, "little") * _CHUNK
            for index in self.order[first : first + _CHUNK].tolist():
                wanted = [
                    (into, room, file)
                    for into, room, file in zip(self.files, rooms, files, strict=True)
                    if into.rows is None or index in into.rows
                ]
                try:
                    answer = decode_into(self.dataset, index, [(into.fit, room) for into, room, _ in wanted])
                except Exception as error:  # anything but a broken image, which is an answer
                    where = self.dataset.where(index)
                    channel.send(Failure(f"decoding failed with {type(error).__name__}: {error} ({where})"))
                    raise EOFError from error
                if isinstance(answer, str):
                    channel.send(Broken(index, answer))
                    marks[index] = _BROKEN
                    continue
                for into, room, file in wanted:
                    _write(channel, file, room, index if into.rows is None else into.rows[index])
                sizes[index] = torch.tensor(answer, dtype=torch.int32)
                marks[index] = _WRITTEN  # last: from now on the row is read


class DirectPool:
    """Processes that work on a DirectJob; `close` ends them, as does the end of the program."""

    def __init__(
        self, dataset: Dataset, order: Sequence[int], files: Sequence[tuple[Into, int]], *, workers: int
    ) -> None:
        job = DirectJob(dataset=dataset, order=torch.tensor(order), files=[into for into, _ in files])
        chunks = -(-len(order) // _CHUNK)
        with shared_memory(job.state_bytes) as memory, shared_memory(0) as numbers:
            self._sizes, self._marks = job.state(memory)
            os.write(numbers, b"".join(number.to_bytes(_NUMBER, "little") for number in range(chunks)))
            os.lseek(numbers, 0, os.SEEK_SET)
            descriptors = [memory, numbers, *(file for _, file in files)]
            self._crew = Crew(dataset.name, job, descriptors, count=workers)
        self.close = self._crew.close

    def done(self) -> Iterator[dict[int, Answer]]:
        """What became of images, as soon as it is known, until all are done."""
        known, channels, reasons = torch.zeros_like(self._marks), list(self._crew.channels), dict[int, str]()
        while channels:
            for channel in wait(channels, _LOOK):
                assert isinstance(channel, Connection)  # noqa: S101  (nothing else was waited for)
                with self._crew.watched():
                    said = channel.recv()
                if isinstance(said, Broken):
                    reasons[said.image] = said.reason
                elif isinstance(said, Failure):
                    raise DataError(f"{self._crew.name}: {said.message}")
                elif isinstance(said, Unwritten):
                    raise OSError(said.number, said.message)
                else:
                    channels.remove(channel)
            now = self._marks.clone()
            now[[index for index in (now == _BROKEN).nonzero().flatten().tolist() if index not in reasons]] = 0
            new = (now != known).nonzero().flatten()
            if len(new):
                sizes = self._sizes[new].tolist()
                yield {
                    index: reasons.get(index, (height, width))
                    for index, (height, width) in zip(new.tolist(), sizes, strict=True)
                }
            known = now


def _write(channel: Connection, file: int, image: Tensor, row: int) -> None:
    data, at = image.numpy().data.cast("B"), row * image.numel()
    try:
        while data:
            written = os.pwrite(file, data, at)
            data, at = data[written:], at + written
    except OSError as error:
        channel.send(Unwritten(error.errno, error.strerror or str(error)))
        raise EOFError from error
