"""The processes that work on one job, with a channel to each, and how they end.

By hand and not by `multiprocessing`, whose processes import the user's script again (a script without a main guard
would start itself over and over), hold a copy of the data set each, and stay behind where the program is killed.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from vitrail.data.feeds import decode_process
from vitrail.data.feeds.decode_process import Process
from vitrail.data.feeds.decode_worker import AnyJob
from vitrail.errors import DataError, Unsupported

_PATIENCE = 5.0  # seconds for a process to say how it ended


class Crew:
    """So many processes for a job of a data set `name`; `close` ends them, as does the end of the program."""

    def __init__(self, name: str, job: AnyJob, descriptors: Sequence[int], *, count: int) -> None:
        if not hasattr(os, "fork"):
            raise Unsupported("images can be streamed on Linux and macOS only; use --set feed=packed here")
        message = _pickled(name, job)
        self.name, pairs = name, [socket.socketpair() for _ in range(count)]
        self._process = decode_process.start(message, [other.fileno() for _, other in pairs], descriptors)
        self.channels = [Connection(ours.detach()) for ours, _ in pairs]
        for _, other in pairs:
            other.close()
        self.close = weakref.finalize(self, _end, self._process, self.channels)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Says clearly that a process is gone."""
        try:
            yield
        except (EOFError, OSError) as error:
            for channel in self.channels:
                channel.close()  # so that the others end, too, and the first can tell how
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
            code = self._process.returncode or 0
            how = f"was killed by signal {code - 128}" if code > 128 else "ended unexpectedly"
            advice = "; often the memory was full: use fewer workers" if code - 128 == signal.SIGKILL else ""
            raise DataError(f"a process that decodes images of {self.name} {how}{advice}") from error


@contextlib.contextmanager
def shared_memory(size: int) -> Iterator[int]:
    """A file descriptor of memory without a name, which nothing can leave behind; /dev/shm is small in containers."""
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


def _pickled(name: str, job: AnyJob) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:  # pickle raises errors of many kinds
        raise DataError(
            f"{name} cannot be streamed, as its data set cannot be pickled ({error}); use --set feed=packed"
        ) from error


def _end(process: Process, channels: Sequence[Connection]) -> None:
    """Ends all processes of a crew at once; they hold nothing that could be lost."""
    for channel in channels:
        channel.close()
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
