"""Processes that decode images, as the program that uses them sees them: tasks go out, pixels come back in memory.

By hand and not by `multiprocessing`, whose processes import the user's script again (a script without a main guard
would start itself over and over), hold a copy of the data set each, and stay behind where the program is killed.
"""

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.feeds.decode_worker import SLOTS, Also, Failure, Job
from vitrail.data.feeds.decoded import Answer
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError, Unsupported

_PROGRAM = """
import gc, pickle, sys
gc.disable()  # until everything is imported: collections take a quarter of that time
sys.path[:] = pickle.load(sys.stdin.buffer)
from vitrail.data.feeds.decode_worker import main
main()
"""
_CHUNK = 8  # images of a task: messages cost little then, and no process has much more to do than another
_PATIENCE = 5.0  # seconds for a process to say how it ended


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
        if not hasattr(os, "fork"):
            raise Unsupported("images can be streamed on Linux and macOS only; use --set feed=packed here")
        job = Job(dataset=dataset, fit=fit, workers=workers, chunk=_CHUNK, more=more)
        message = _pickled(job)
        self.layout = job.layout
        self.name, self.chunk, self.capacity = dataset.name, _CHUNK, workers * SLOTS * _CHUNK  # images
        self._queues: list[deque[tuple[int, Task]]] = [deque() for _ in range(workers)]
        self._sent = [0] * workers  # tasks so far: their slots take turns
        pairs = [socket.socketpair() for _ in range(workers)]
        with _shared_memory(job) as memory:
            self._pixels = job.pixels(memory)
            theirs = [other.fileno() for _, other in pairs]
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, and no words of a user)
                [sys.executable, "-c", _PROGRAM, *map(str, [memory, *theirs])],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[memory, *theirs],
                start_new_session=True,  # Ctrl-C reaches the program alone, which then ends these
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
        self._channels = [Connection(ours.detach()) for ours, _ in pairs]
        for _, other in pairs:
            other.close()
        self.close = weakref.finalize(self, _end, self._process, self._channels)
        assert self._process.stdin is not None  # noqa: S101  (a pipe was asked for)
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # the channels tell of a failure
            pipe.write(message)

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
        with self._watched():
            self._channels[worker].send((slot, list(task.indices)))

    def receive(self, timeout: float) -> Iterator[Done]:
        """The tasks that are done, after a wait of at most `timeout` seconds for the first."""
        busy = {id(channel): worker for worker, channel in enumerate(self._channels) if self._queues[worker]}
        channels = [self._channels[worker] for worker in busy.values()]
        for channel in wait(channels, timeout):
            assert isinstance(channel, Connection)  # noqa: S101  (nothing else was waited for)
            worker = busy[id(channel)]
            with self._watched():
                answer: list[Answer] | Failure = channel.recv()
            if isinstance(answer, Failure):
                raise DataError(f"{self.name}: {answer.message}")
            slot, task = self._queues[worker].popleft()
            yield Done(task, answer, self._pixels[worker, slot])

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Says clearly that a process is gone."""
        try:
            yield
        except (EOFError, OSError) as error:
            for channel in self._channels:
                channel.close()  # so that the others end, too, and the first can tell how
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
            code = self._process.returncode or 0
            how = f"was killed by signal {code - 128}" if code > 128 else "ended unexpectedly"
            advice = "; often the memory was full: use fewer workers" if code - 128 == signal.SIGKILL else ""
            raise DataError(f"a process that decodes images of {self.name} {how}{advice}") from error


def _pickled(job: Job) -> bytes:
    """What the first process reads: where modules are found, and then the job."""
    try:
        return pickle.dumps(sys.path) + pickle.dumps(job)
    except Exception as error:  # pickle raises errors of many kinds
        raise DataError(
            f"{job.dataset.name} cannot be streamed, as its data set cannot be pickled ({error}); use --set feed=packed"
        ) from error


@contextlib.contextmanager
def _shared_memory(job: Job) -> Iterator[int]:
    """A file descriptor of memory without a name, which nothing can leave behind; /dev/shm is small in containers."""
    size = math.prod(job.shape)
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("vitrail")
        try:
            os.ftruncate(memory, size)
            yield memory
        finally:
            os.close(memory)
    else:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            yield file.fileno()


def _end(process: "subprocess.Popen[bytes]", channels: Sequence[Connection]) -> None:
    """Ends all processes of a pool at once; they hold nothing that could be lost."""
    for channel in channels:
        channel.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
