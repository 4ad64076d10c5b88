"""The first process of those that decode images: a copy of this one, made early, or one that is started anew.

A new one imports torch, which takes seconds. A copy costs milliseconds, but is safe only of a process that has one
thread and has not touched a GPU: so `prepared` makes copies before a run does either, and they wait for their work.
"""

import contextlib
import gc
import io
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from vitrail.data.feeds.decode_worker import work

_PROGRAM = """
import gc, pickle, sys
gc.disable()  # until everything is imported: collections take a quarter of that time
sys.path[:] = pickle.load(sys.stdin.buffer)
from vitrail.data.feeds.decode_worker import main
main()
"""
_QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
_LENGTHS = struct.Struct("<QQ")  # bytes of the job; channels among the file descriptors
_MOST = 250  # file descriptors in one message; Linux takes 253
_COPIES = 2  # images of training, and those of validation from another place


class Process(Protocol):
    """A process as its starter sees it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """How it ended, if it has."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; TimeoutExpired if that does not come in time."""


class Copy:
    """A copy of this process that waits for a job; it ends with the other end of its channel."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self.returncode: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, for which `clean` looks
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _wait_for_work(theirs.detach())
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            finally:
                os._exit(code)
        theirs.close()
        self.clean = _threads() == 1  # a library that takes care of its threads has none during a copy

    def give(self, job: bytes, channels: Sequence[int], others: Sequence[int]) -> None:
        """Sends the job that it begins to work on."""
        with self._control:
            socket.send_fds(self._control, [_LENGTHS.pack(len(job), len(channels))], [*channels, *others])
            self._control.sendall(job)

    def end(self) -> None:
        """Ends it."""
        self._control.close()
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def poll(self) -> int | None:
        """How it ended, if it has."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; TimeoutExpired if that does not come in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("decoding", timeout or 0.0)
            time.sleep(0.002)
        return code


_copies: list[Copy] = []
_owner = 0  # the process that made them: in a forked copy of it they are not to be used


@contextlib.contextmanager
def prepared(device: str | torch.device | None = None) -> Iterator[None]:
    """Inside, the first processes that decode start at once, where this process can be copied now and may use a GPU."""
    global _owner  # noqa: PLW0603
    if not _copies and _may_copy() and may_use_gpu(device):
        _owner = os.getpid()
        for _ in range(_COPIES):
            _copies.append(copy := Copy())
            if not copy.clean:
                break
    try:
        if not all(copy.clean for copy in _copies):
            release()
        yield
    finally:
        release()


def release() -> None:
    """Ends the copies that have no work."""
    while _copies:
        copy = _copies.pop()
        if _owner == os.getpid():
            copy.end()


def start(job: bytes, channels: Sequence[int], others: Sequence[int]) -> Process:
    """A process that works on a pickled job, with file descriptors for channels and for what else the job needs."""
    if _copies and _owner == os.getpid() and len(channels) + len(others) <= _MOST:
        copy = _copies.pop()
        with contextlib.suppress(OSError):  # it has ended; the channels would tell of a later failure
            copy.give(job, channels, others)
            return copy
        copy.end()
    process = subprocess.Popen(  # noqa: S603  (this interpreter, and no words of a user)
        [sys.executable, "-c", _PROGRAM, str(len(channels)), *map(str, [*channels, *others])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[*channels, *others],
        start_new_session=True,  # Ctrl-C reaches the program alone, which then ends these
        env=os.environ | _QUIET,
    )
    assert process.stdin is not None  # noqa: S101  (a pipe was asked for)
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # the channels tell of a failure
        pipe.write(pickle.dumps(sys.path) + job)
    return process


def may_use_gpu(device: str | torch.device | None) -> bool:
    """Whether a run on a device that was asked for may use a GPU; looking for one would touch it."""
    return torch.backends.cuda.is_built() and (device is None or str(device).startswith("cuda"))


def _may_copy() -> bool:
    """Whether nothing is known of this process that a copy would not survive."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone and not torch.cuda.is_initialized()


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _wait_for_work(control: int) -> None:
    """The life of a copy: it keeps the standard error of its program, and nothing else."""
    os.setsid()  # Ctrl-C reaches the program alone, which then ends this
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for number in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {0, 1, 2, control}:
        with contextlib.suppress(OSError):  # that of the list itself
            os.close(number)
    os.environ.update(_QUIET)
    gc.disable()
    with socket.socket(fileno=control) as channel:
        head, descriptors, _, _ = socket.recv_fds(channel, _LENGTHS.size, _MOST)
        if len(head) < _LENGTHS.size:
            return  # the program has ended, or needs no more
        length, count = _LENGTHS.unpack(head)
        job = io.BytesIO()
        while job.tell() < length and (part := channel.recv(min(1 << 20, length - job.tell()))):
            job.write(part)
    if job.tell() == length:
        job.seek(0)
        work(job, descriptors[:count], descriptors[count:])
