"""Logs: one JSON object per line on standard error, without file names or file contents.

A line that cannot be written is dropped and counted: a full disk, a reader that is gone or a reader that does not read
must not stop the service. In its processes a thread writes the lines, so that nothing else ever waits for the reader.
Standard error cannot simply be made non-blocking: that would apply to every process that shares it.
"""

import contextlib
import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from vitrail.strict_json import to_json

MAX_BYTES = 1 << 20  # of lines that wait to be written
_DRAIN = 1.0  # seconds for the last lines when the process ends
_POLL = 0.1
_LEVELS: dict[int, Literal["info", "warning", "error"]] = {logging.INFO: "info", logging.WARNING: "warning"}


class _Dropped:
    """Counts lines that were not written."""

    def __init__(self) -> None:
        self._lock, self._count = threading.RLock(), 0

    def add(self, count: int) -> None:
        with self._lock:
            self._count += count

    def take(self) -> int:
        with self._lock:
            count, self._count = self._count, 0
        return count


_dropped = _Dropped()


def log(level: Literal["info", "warning", "error"], event: str, **fields: Any) -> None:
    """Writes one line: time, level, event, process id and further fields. It never raises."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = {"time": stamp, "level": level, "event": event, "process": os.getpid()} | fields
    try:
        sys.stderr.write(to_json(line, default=str) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed or full, or None: the process was started without one
        _dropped.add(1)


def take_dropped() -> int:
    """How many lines were dropped since the last call."""
    return _dropped.take()


class BackgroundStream(io.TextIOBase):
    """A text stream whose `write` neither waits nor raises: a thread writes to the file descriptor."""

    def __init__(self, descriptor: int, *, max_bytes: int = MAX_BYTES) -> None:
        self._descriptor, self._max_bytes = descriptor, max_bytes
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes that wait or are being written
        self._changed = threading.Condition()  # its lock is reentrant: signal handlers may log, too
        self._partial_line = False  # whether the last line was written in part
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Queues text; drops it when too much waits already."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._size + len(data) > self._max_bytes:
                _dropped.add(max(1, data.count(b"\n")))
            else:
                self._waiting.append(data)
                self._size += len(data)
                self._changed.notify_all()
        return len(text)

    def drain(self, seconds: float) -> None:
        """Waits until everything is written, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: self._size == 0, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                data = self._waiting.popleft()
            try:
                self._write(data)
            except OSError:
                _dropped.add(max(1, data.count(b"\n")))
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        left = memoryview(b"\n" + data if self._partial_line else data)
        while left:
            try:
                written = os.write(self._descriptor, left)
            except BlockingIOError:  # another process made it non-blocking
                select.select([], [self._descriptor], [], _POLL)
                continue
            left, self._partial_line = left[written:], written < len(left)


class _LineHandler(logging.Handler):
    """Messages of uvicorn and asyncio, as lines of this log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        error = record.exc_info[1] if record.exc_info else None
        try:
            fields = {} if error is None else {"error": repr(error)}
            text = record.getMessage().strip()
        except Exception:  # a message with other arguments than its format says
            _dropped.add(1)
        else:
            log(_LEVELS.get(record.levelno, "error"), text, logger=record.name, **fields)


@contextlib.contextmanager
def background_logs() -> Iterator[None]:
    """Within the block nothing in this process waits for standard error, and libraries log in the same format."""
    before, handler = sys.stderr, _LineHandler(logging.WARNING)
    try:
        stream = BackgroundStream(before.fileno())
    except (AttributeError, OSError, ValueError):  # no standard error, or one without a file
        yield
        return
    sys.stderr = stream
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        stream.drain(_DRAIN)
        sys.stderr = before


def fill_standard_descriptors() -> None:
    """Opens /dev/null for standard streams that are closed: a socket that took their number would get the log."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
