"""One writer at a time: a lock file that names its holder, and that ends with the holder's process.

The lock is `flock` on an open file, so a process that is killed gives it up at once and nothing has to be cleaned. The
file is removed on release; whoever waited for the removed one opens the path again.
"""

import contextlib
import errno
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import BusyError, Notice, WriteError
from vitrail.files import lock
from vitrail.strict_json import to_json

_TAKEN = (errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # by the file system
_PATIENCE = 2.0  # seconds of waiting before a notice
_HOLDER = 4096  # bytes of a lock file that are read


@contextlib.contextmanager
def locked(file: Path, *, what: str, wait: bool = False) -> Iterator[None]:
    """Holds the lock `file`, in a folder that exists, while the block runs; `what` it protects is for messages.

    BusyError names the process that holds it; with `wait`, the block runs when that process is done, and a notice
    names it if that takes long. Where there are no locks, the block runs; with a notice, unless `wait` says that two
    may do the same work.
    """
    try:
        handle = _acquire(file, what, wait=wait)
    except OSError as error:
        raise WriteError(f"cannot lock {what}: {error.strerror or error}; check its permissions and space") from error
    if handle is None:
        if not wait:
            text = f"{file.parent} has no file locks; make sure that only one process writes {what}"
            warnings.warn(text, Notice, stacklevel=4)
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(handle)


def _acquire(file: Path, what: str, *, wait: bool) -> int | None:
    """The descriptor that holds the lock; None where the file system has no locks."""
    notified, patience = False, time.monotonic() + _PATIENCE
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(handle, wait=notified)
        except OSError as error:
            holder = _holder(handle) if error.errno in _TAKEN else ""
            os.close(handle)
            if error.errno in _UNSUPPORTED:
                return None
            if not holder:
                raise
            if not wait:
                raise BusyError(f"{what} is in use by {holder}; wait until it ends, or stop it") from error
            if time.monotonic() < patience:
                time.sleep(0.02)
                continue
            warnings.warn(f"waits for {holder}, which is writing {what}", Notice, stacklevel=5)
            notified = True
            continue
        except BaseException:  # Ctrl-C during the wait
            os.close(handle)
            raise
        if _is_open(handle, file):
            _sign(handle)
            return handle
        os.close(handle)  # the holder removed the file meanwhile


def _is_open(handle: int, file: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    """Writes who holds the lock; on a full disk the lock holds without a name."""
    text = to_json({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    with contextlib.suppress(OSError):
        os.ftruncate(handle, os.pwrite(handle, text, 0))


def _holder(handle: int) -> str:
    for _ in range(20):
        try:
            holder = json.loads(os.pread(handle, _HOLDER, 0))
            return f"process {int(holder['pid'])} on {holder['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            time.sleep(0.01)  # it may have the lock since a moment, and write its name now
    return "another process"
