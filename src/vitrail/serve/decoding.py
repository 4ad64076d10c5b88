"""Decoding in processes that can be killed: a pool of them, shared fairly among requests."""

import asyncio
import contextlib
import fcntl
import functools
import math
import mmap
import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitrail.errors import BrokenImage
from vitrail.serve.batching import Overloaded
from vitrail.serve.config import FORMATS, ServeConfig
from vitrail.serve.cores import use_cores
from vitrail.serve.decoder import CHANNELS, receive_message, send_message
from vitrail.serve.fork_server import fork_server
from vitrail.serve.priority import lower_priority
from vitrail.serve.turns import Turns
from vitrail.serve.upload import File

_TICK = 0.05  # seconds between two looks at a decoder that is busy
_DEMOTE_AFTER = 0.05  # seconds of processor time: then it has a lower priority
_LONG_AFTER = 0.2  # seconds of processor time: then it takes long, and not all decoders may have such pictures
_YIELD_AFTER = 1.0  # seconds of processor time after which a picture makes room for those of other requests
_OTHERS_WAIT = 0.2  # seconds that another request must have waited for its first decoder
_IDLE = 30.0  # seconds after which a decoder without work ends
_KEPT = 36 << 20  # bytes of shared memory that stay allocated between pictures: a photo of 12 million pixels

T = TypeVar("T")


class _Cancelled(Exception):
    """Nobody waits for this picture any more."""


class _Postponed(Exception):
    """It takes long, and so do as many others as may at a time."""


class _DecoderCrashed(BrokenImage):
    """The decoder ended before its answer, for whatever reason, or its answer is not one."""


class Decoder:
    """One decoding process, and the memory that it shares with this one."""

    def __init__(self, config: ServeConfig) -> None:
        size = CHANNELS * config.max_pixels
        self._fork_server, self._config, self._used = fork_server(os.getpid()), config, 0
        self.demoted = False  # it cannot get its priority back: another takes its place after this picture
        self._channel, theirs = socket.socketpair()
        limits = {"max_pixels": config.max_pixels, "max_bytes": config.decoder_bytes, "formats": FORMATS}
        with theirs, _memory_file(size) as memory:
            self._memory = mmap.mmap(memory, size)
            self.pid = self._fork_server.start(theirs, memory, limits | {"seconds": config.decode_seconds})

    def decode(self, file: File, give_up: Callable[[float], Exception | None]) -> Tensor:
        """The pixels of a file, uint8 C H W, in memory that the next picture overwrites.

        While it takes long, `give_up` is asked again and again, with the processor time so far: what it returns is
        raised. A decoder that raised anything but BrokenImage has ended, and so has one with `pid` 0.
        """
        until = time.monotonic() + self._config.timeout
        try:
            self._channel.settimeout(self._config.timeout)
            send_message(self._channel, {"name": file.name, "bytes": len(file.data)}, file.data)
            self._wait(give_up, until)
            answer = receive_message(self._channel, until=until)
            shape = _checked_shape(answer, self._config.max_pixels)
        except TimeoutError:
            self.end(kill=True)
            raise BrokenImage(f"{file.name} cannot be decoded within {self._config.timeout:g} s") from None
        except (EOFError, OSError):
            if self.end(kill=False) == signal.SIGPROF:
                seconds = self._config.decode_seconds
                raise BrokenImage(f"{file.name} cannot be decoded within {seconds:g} s of processor time") from None
            raise _DecoderCrashed(f"{file.name} cannot be decoded: it crashes the decoder") from None
        except ValueError:  # whatever it says, it is not to be trusted any more
            self.end(kill=True)
            raise _DecoderCrashed(f"{file.name} cannot be decoded: the answer of the decoder is not valid") from None
        except BaseException:
            self.end(kill=True)
            raise
        if shape is None:
            raise BrokenImage(answer["error"])
        self._used = math.prod(shape)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=self._used).view(shape)

    def release(self) -> None:
        """Returns the memory of the last picture to the system, if it was large."""
        if self._used > _KEPT:
            self._used = 0
            with contextlib.suppress(AttributeError, OSError):  # Linux only
                self._memory.madvise(mmap.MADV_REMOVE, _KEPT)

    def end(self, *, kill: bool) -> int:
        """Ends the process; the signal that it died of, or 0."""
        self._channel.close()
        pid, self.pid = self.pid, 0
        return self._fork_server.end(pid, kill=kill) if pid else 0

    def _wait(self, give_up: Callable[[float], Exception | None], until: float) -> None:
        """Waits for the beginning of an answer."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        clock = _processor_clock(self.pid)
        before = clock()
        while not poll.poll(1000 * _TICK):
            seconds = clock() - before
            if (error := give_up(seconds)) is not None:
                raise error
            if seconds > _DEMOTE_AFTER and not self.demoted:
                lower_priority(self.pid)
                self.demoted = True
            if time.monotonic() > until:
                raise TimeoutError


def _checked_shape(answer: dict[str, Any], max_pixels: int) -> tuple[int, int, int] | None:
    """C H W of the pixels, None for an error; ValueError for what no decoder says that works as it should."""
    match answer:
        case {"error": str(text), **others} if not others:
            text.encode()  # ValueError where it could not be sent on
            return None
        case {"shape": [channels, height, width], **others} if not others:
            whole = {type(channels), type(height), type(width)} == {int}
            if whole and channels in (1, CHANNELS) and min(height, width) > 0 and height * width <= max_pixels:
                return channels, height, width
    raise ValueError("neither an error nor a shape within the limits")


@dataclass(eq=False)
class _Job:
    file: File
    work: Callable[[Tensor], Any]
    owner: object
    future: "asyncio.Future[Any]"
    since: float = field(default_factory=time.monotonic)
    long: bool = False  # whether it, or one before it in the same request, took more than `_LONG_AFTER`


class DecoderPool:
    """Up to `decoders` processes; requests take turns.

    Unless there is only one decoder, no request has all of them, and neither have pictures that take long: one that
    does while the others do, too, begins again when one of them is done; others of its request are taken for such, too.
    So one decoder is soon there for the rest.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._share = max(1, config.decoders - 1)  # of a request, and of pictures that take long
        self._queue: Turns[_Job] = Turns()
        self._running: Counter[object] = Counter()
        self._long = 0  # of those that run
        self._slow: set[object] = set()  # requests with a picture that took long
        self._wake, self._closed = threading.Condition(), False
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._resizer = ThreadPoolExecutor(1, thread_name_prefix="resizing", initializer=_resize_alone)
        fork_server(os.getpid()).prepare()

    async def decode(self, file: File, work: Callable[[Tensor], T], *, owner: object) -> T:
        """Decodes a file and returns `work(pixels)`: it runs in a thread, on uint8 C H W that it must not keep.

        Raises BrokenImage, or Overloaded for a file that takes long while other requests wait. When this is cancelled,
        the decoder is killed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._queue.add(_Job(file, work, owner, future))
            if not self._idle and len(self._threads) < self._config.decoders:
                thread = threading.Thread(target=self._run, name="decoding", daemon=True)
                self._threads.add(thread)
                thread.start()
            self._wake.notify()
        return await future

    def close(self) -> None:
        """Decodes what is queued, then ends the processes."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self._resizer.shutdown()

    def _run(self) -> None:
        use_cores(1)
        decoder: Decoder | None = None
        while (job := self._take()) is not None:
            deliver: Callable[[], None] | None = None
            try:
                decoder = self._alive(decoder)
                try:
                    result = self._decoded(job, decoder)
                except _DecoderCrashed:  # perhaps of something else: once more, in a new one
                    decoder = self._alive(decoder)
                    result = self._decoded(job, decoder)
            except _Postponed:
                pass
            except OSError:  # no process, no memory, no file descriptor
                deliver = functools.partial(_fail, job.future, Overloaded("decoders", 1))
            except Exception as error:  # the thread must survive any error; the request receives it
                deliver = functools.partial(_fail, job.future, error)
            else:
                deliver = functools.partial(_succeed, job.future, result)
                del result
            if decoder is not None:
                decoder.release()
            self._finish(job, postponed=deliver is None)
            if deliver is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for this
                    job.future.get_loop().call_soon_threadsafe(deliver)
            del job, deliver
        if decoder is not None:
            decoder.end(kill=True)

    def _decoded(self, job: _Job, decoder: Decoder) -> Any:
        pixels = decoder.decode(job.file, functools.partial(self._give_up, job))
        return self._resizer.submit(job.work, pixels).result() if decoder.demoted else job.work(pixels)

    def _alive(self, decoder: Decoder | None) -> Decoder:
        if decoder is not None and decoder.demoted:
            decoder.end(kill=True)
        return decoder if decoder is not None and decoder.pid else Decoder(self._config)

    def _take(self) -> _Job | None:
        """The next picture; None when there is none for long, or ever."""
        with self._wake:
            until = time.monotonic() + _IDLE
            while (job := self._queue.take(self._may_run)) is None:
                left = until - time.monotonic()
                if left <= 0 or (self._closed and not self._queue):
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._wake.wait(left)
                self._idle -= 1
            self._running[job.owner] += 1
            job.long = job.owner in self._slow
            self._long += job.long
            if (following := self._queue.head(job.owner)) is not None:
                following.since = time.monotonic()  # its request has had a turn
            return job

    def _may_run(self, job: _Job) -> bool:
        waits = job.owner in self._slow and self._long >= self._share
        return self._running[job.owner] < self._share and not waits

    def _finish(self, job: _Job, *, postponed: bool) -> None:
        with self._wake:
            self._running[job.owner] -= 1
            self._running += Counter()  # without zeros
            self._long -= job.long
            if postponed:
                job.since = time.monotonic()
                self._queue.put_back(job)
            self._slow = {one for one in self._slow if self._running[one] or self._queue.head(one) is not None}
            self._wake.notify()

    def _give_up(self, job: _Job, seconds: float) -> Exception | None:
        if job.future.cancelled():  # its client has left, or its time is over
            return _Cancelled()
        with self._wake:
            if seconds > _LONG_AFTER and not job.long:
                self._slow.add(job.owner)
                if self._long >= self._share:
                    return _Postponed()
                job.long = True
                self._long += 1
            if seconds <= _YIELD_AFTER:
                return None
            late = time.monotonic() - _OTHERS_WAIT
            waits = any(head.since < late for head in self._queue.heads() if not self._running[head.owner])
        return Overloaded("decoders", 1) if waits else None


def _resize_alone() -> None:
    lower_priority()
    use_cores(1)


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


@contextlib.contextmanager
def _memory_file(size: int) -> Any:
    """The descriptor of a file in memory; a decoder cannot change its size, on which this process relies."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            yield file.fileno()
        return
    descriptor = os.memfd_create("pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield descriptor
    finally:
        os.close(descriptor)


def _processor_clock(pid: int) -> Callable[[], float]:
    """Tells the seconds that a process has computed; where they cannot be read, those of the wall clock."""
    number = ~pid << 3 | 2  # CLOCK_PROCESS_CPUTIME_ID of another process, on Linux
    try:
        last = time.clock_gettime(number)
    except OSError:
        return time.monotonic

    def clock() -> float:
        nonlocal last
        with contextlib.suppress(OSError):  # it has ended, which is seen elsewhere
            last = time.clock_gettime(number)
        return last

    return clock
