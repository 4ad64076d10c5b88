"""The processes that decode images into shared memory: `DecodePool` starts one, which becomes many.

The first process has torch imported, reads the data set, and then forks: so this is done once, the data set lies in
memory once, and all start within milliseconds. It has no threads, which is what makes a fork safe. Each process ends
when the other end of its channel is closed, which happens also where the program that started it is killed.
"""

import gc
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.decoded import Answer, decode_into
from vitrail.data.feeds.dense import SampleLayout, also_called, dense_fields, fitted
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage

SLOTS = 2  # tasks that a process has: one that it works on, one that waits


class Also(NamedTuple):
    """Another size that is wanted of some images."""

    fit: Preprocess
    of: Collection[int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all processes of a pool work on."""

    dataset: Dataset
    fit: Preprocess
    workers: int
    chunk: int  # images of a task, at most
    more: Sequence[Also] = ()

    @property
    def layout(self) -> SampleLayout:
        """Of the bytes of one sample: its image, at one size or at several, and targets with a value for each pixel."""
        return SampleLayout(self.fit, self.dataset.schema, [fit for fit, _ in self.more])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the shared memory: for each process and slot, samples as rows of bytes."""
        return (self.workers, SLOTS, self.chunk, self.layout.stride)

    def pixels(self, memory: int) -> Tensor:
        """The shared memory of a file descriptor as uint8 workers SLOTS chunk stride."""
        mapped = mmap.mmap(memory, int(np.prod(self.shape, dtype=np.int64)))
        return torch.frombuffer(mapped, dtype=torch.uint8).view(self.shape)

    def opened(self, descriptors: Sequence[int]) -> Callable[[int, Connection], None]:
        """See `AnyJob`: the shared memory."""
        pixels = self.pixels(descriptors[0])
        return lambda number, channel: serve(channel, self, pixels[number])


class Failure(NamedTuple):
    """An error that is not about one image."""

    message: str


class AnyJob(Protocol):
    """What the processes of a pool work on."""

    def opened(self, descriptors: Sequence[int]) -> Callable[[int, Connection], None]:
        """The work of a process, by its number and channel; with the file descriptors that came with the job."""


def main() -> None:
    """Reads a job from the standard input; arguments: the number of channels, and file descriptors."""
    count, *descriptors = map(int, sys.argv[1:])
    work(sys.stdin.buffer, descriptors[:count], descriptors[count:])


def work(source: IO[bytes], numbers: Sequence[int], others: Sequence[int]) -> None:
    """Becomes one process for each channel, all of which work on the job that is read."""
    channels = [Connection(number) for number in numbers]
    try:
        job: AnyJob = pickle.load(source)  # noqa: S301  (written by the program that started this one)
        serve = job.opened(others)
    except Exception as error:  # such as a class that cannot be imported here
        for channel in channels:
            channel.send(Failure(f"the data set cannot be sent to another process: {type(error).__name__}: {error}"))
        return
    torch.set_num_threads(1)
    gc.freeze()  # otherwise the next collection would copy every page that holds an object
    gc.enable()
    children = []
    for number, channel in enumerate(channels):
        if (child := os.fork()) == 0:
            for other in channels:
                if other is not channel:
                    other.close()
            code = 1
            try:
                serve(number, channel)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for channel in channels:
        channel.close()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(next((128 - code if code < 0 else code for code in codes if code), 0))  # as shells tell of signals


def serve(channel: Connection, job: Job, pixels: Tensor) -> None:
    """Answers tasks (slot, indices) until the channel is closed; samples go to pixels SLOTS chunk stride."""
    views = job.layout.views(pixels)
    try:
        while True:
            slot, indices = channel.recv()
            try:
                answer: list[Answer] | Failure = [
                    _decode(job, index, {name: view[slot, at] for name, view in views.items()})
                    for at, index in enumerate(indices)
                ]
            except Exception as error:  # anything but a broken image, which is an answer
                names = ", ".join(map(job.dataset.where, indices))
                answer = Failure(f"decoding failed with {type(error).__name__}: {error} (one of {names})")
            channel.send(answer)
    except (EOFError, OSError):
        return


def _decode(job: Job, index: int, room: Mapping[str, Tensor]) -> Answer:
    dataset = job.dataset
    rooms = [(job.fit, room[""])]
    rooms += [(one.fit, room[also_called(at)]) for at, one in enumerate(job.more) if index in one.of]
    size = decode_into(dataset, index, rooms)
    if isinstance(size, str):
        return size
    for name, target in dense_fields(dataset.schema).items():
        try:
            value = dataset.targets[name][index]
            room[name].copy_(fitted(target, value, size, job.fit, image=dataset.where(index)))
        except BrokenImage as error:
            return str(error)
    return size
