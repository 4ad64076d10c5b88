"""Processes that decode images, as the program that uses them sees them: tasks go out, pixels come back in memory."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.decode_crew import Crew, shared_memory
from vitrail.data.feeds.decode_worker import SLOTS, Also, Failure, Job
from vitrail.data.feeds.decoded import Answer
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

_CHUNK = 8  # images of a task: messages cost little then, and no process has much more to do than another


class Task(NamedTuple):
    """Images to decode: their numbers, and where the results belong, which the pool only hands back."""

    indices: Sequence[int]
    rows: Sequence[int]
    batch: object


class Done(NamedTuple):
    """A task that is done; pixels chunk stride are overwritten by a later task, so they must be copied at once."""

    task: Task
    answers: list[Answer]
    pixels: Tensor


class DecodePool:
    """Processes that decode images of one data set; `close` ends them, as does the end of the program.

    `more` are sizes that are wanted of some images beside that of `fit`; `layout` says where each lies in the pixels.
    """

    def __init__(self, dataset: Dataset, fit: Preprocess, *, workers: int, more: Sequence[Also] = ()) -> None:
        job = Job(dataset=dataset, fit=fit, workers=workers, chunk=_CHUNK, more=more)
        self.layout = job.layout
        self.chunk, self.capacity = _CHUNK, workers * SLOTS * _CHUNK  # images
        self._queues: list[deque[tuple[int, Task]]] = [deque() for _ in range(workers)]
        self._sent = [0] * workers  # tasks so far: their slots take turns
        with shared_memory(math.prod(job.shape)) as memory:
            self._pixels = job.pixels(memory)
            self._crew = Crew(dataset.name, job, [memory], count=workers)
        self._channels, self.close = self._crew.channels, self._crew.close

    @property
    def has_room(self) -> bool:
        """Whether a process can take one more task."""
        return min(map(len, self._queues)) < SLOTS

    def send(self, task: Task) -> None:
        """Gives a task to the process with the fewest; only where there is room."""
        worker = min(range(len(self._queues)), key=lambda one: len(self._queues[one]))
        slot = self._sent[worker] % SLOTS
        self._sent[worker] += 1
        self._queues[worker].append((slot, task))
        with self._crew.watched():
            self._channels[worker].send((slot, list(task.indices)))

    def receive(self, timeout: float) -> Iterator[Done]:
        """The tasks that are done, after a wait of at most `timeout` seconds for the first."""
        busy = {id(channel): worker for worker, channel in enumerate(self._channels) if self._queues[worker]}
        channels = [self._channels[worker] for worker in busy.values()]
        for channel in wait(channels, timeout):
            assert isinstance(channel, Connection)  # noqa: S101  (nothing else was waited for)
            worker = busy[id(channel)]
            with self._crew.watched():
                answer: list[Answer] | Failure = channel.recv()
            if isinstance(answer, Failure):
                raise DataError(f"{self._crew.name}: {answer.message}")
            slot, task = self._queues[worker].popleft()
            yield Done(task, answer, self._pixels[worker, slot])
