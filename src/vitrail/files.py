"""Files that are written completely or not at all, and regular files that are read with a limit.

A file is written in a temporary folder beside it and renamed when it is complete. The temporary folder is locked while
its writer lives; one that a killed process left behind is not, and the next writer there removes it.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import DataError, WriteError, reason
from vitrail.strict_json import to_json

# Errors of the machine: another attempt may succeed, and they say nothing about the file.
_MACHINE = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ESTALE, errno.ETIMEDOUT)
IMAGE_LIMIT = 1 << 29  # bytes of an image file
TEXT_LIMIT = 1 << 32  # bytes of a table or another text
_CHUNK = 1 << 16
# What numpy raises for headers of .npy that are damaged, or claim more than there is.
DAMAGED_ARRAY = (
    OSError,
    ValueError,
    EOFError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    TokenError,
)
_TEMPORARY_SUFFIX = ".vitrail-new"  # how names of temporary folders end
_TEMPORARY = re.compile(rf"\..+\.\w{{8}}{re.escape(_TEMPORARY_SUFFIX)}")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path) -> IO[bytes]:
    """A regular file, opened to be read; OSError for a pipe, a device, a socket or a folder. Links are followed."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_regular(stat.S_IFSOCK, path) from error
        raise
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name has a null character", str(path)) from error
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind != stat.S_IFREG:
            raise _not_regular(kind, path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _not_regular(kind: int, path: str | Path) -> OSError:
    return OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'not a file')}, not a regular file", str(path))


def is_file(path: str | Path) -> bool:
    """Whether a path leads to a file; False for a name that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def read_bytes(path: str | Path, limit: int = IMAGE_LIMIT, *, start: int = 0, length: int | None = None) -> bytes:
    """The content of a regular file, or a part of it, of at most `limit` bytes; OSError for anything else.

    Where the machine is at fault (a disk that fails, too many open files), it is a DataError: the file may be fine.
    """
    try:
        return _read(path, limit, start, length)
    except OSError as error:
        raise_machine_fault(error, path)
        raise


def raise_machine_fault(error: OSError, path: str | Path) -> None:
    """Raises a DataError for an error that says nothing about the file, such as too many open files."""
    if error.errno in _MACHINE:
        reason = f"{path} cannot be read now: {error.strerror}"
        raise DataError(
            f"{reason}; this is a fault of the machine, not of the file: repair it and try again"
        ) from error


def _read(path: str | Path, limit: int, start: int, length: int | None) -> bytes:
    with open_regular(path) as file:
        handle = file.fileno()
        size = os.fstat(handle).st_size if length is None else length
        # The size may be wrong: files of /proc have 0, others may grow.
        parts, left = [], 0 if size > limit else limit + 1 if length is None else length
        os.lseek(handle, start, os.SEEK_SET)
        while left and (part := os.read(handle, min(left, max(size + 1, _CHUNK)))):
            parts.append(part)
            left -= len(part)
    if size > limit or (length is None and not left):
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes, the limit", str(path))
    return b"".join(parts)


def read_text(path: str | Path, limit: int = TEXT_LIMIT, *, encoding: str = "utf-8") -> str:
    """The text of a regular file of at most `limit` bytes, with any kind of line ends; OSError, UnicodeDecodeError."""
    text = read_bytes(path, limit).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 over a text and all tensors: names, types, shapes and contents."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, config: Mapping[str, Any] | None = None
) -> None:
    """Writes a safetensors file atomically, and config.json in the same folder if one is given.

    The old config.json is removed before the new weights are put in place: an interrupted save can still be loaded.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    beside = file.parent / "config.json"
    write_atomically(file, lambda new: save_file(plain, new, dict(metadata)), stale=None if config is None else beside)
    if config is not None:
        write_json(beside, config)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    write_atomically(
        file, lambda new: new.write_text(to_json(content, indent=2, ascii_only=True) + "\n", encoding="utf-8")
    )


def write_atomically(file: Path, write: Callable[[Path], object], *, stale: Path | None = None) -> None:
    """Calls `write` with a temporary file, syncs it to disk, removes `stale`, and renames it to `file`.

    On an error what was written is removed and `file` stays as it was; an error of the disk is a WriteError.
    """
    if file.is_dir():
        raise WriteError(f"cannot write {file}: it is a folder; choose another path")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(file) as folder:
            new = folder / file.name
            write(new)
            _sync(new)
            new.chmod(0o666 & ~_umask())
            if stale is not None:
                stale.unlink(missing_ok=True)
            new.replace(file)
        _sync(file.parent)
    except (OSError, SafetensorError) as error:
        raise WriteError(f"cannot write {file}: {reason(error)}; an existing file is unchanged") from error


@contextlib.contextmanager
def temporary_folder(file: Path) -> Iterator[Path]:
    """A new folder beside `file`, in which it is made: writers may leave temporary files there, too.

    The folder is locked until the block ends, and removed then; where its writer is killed, the next one removes it.
    """
    _sweep(file.parent)
    folder, handle = _new(file)
    while not folder.exists():  # another process swept it before it was locked
        os.close(handle)
        folder, handle = _new(file)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)  # on a disk that fails, the error that came first counts
        finally:
            os.close(handle)  # whatever happens: an open handle is a lock, and the folder would never be swept


def _new(file: Path) -> tuple[Path, int]:
    folder = Path(tempfile.mkdtemp(dir=file.parent, prefix=f".{file.name}.", suffix=_TEMPORARY_SUFFIX))
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        folder.rmdir()
        raise
    with contextlib.suppress(OSError):  # where there are no locks, nothing is swept either
        lock(handle, wait=True)
    return folder, handle


def _sweep(folder: Path) -> None:
    """Removes the temporary folders of writers that were killed."""
    with contextlib.suppress(OSError):
        for left in [item for item in folder.iterdir() if _TEMPORARY.fullmatch(item.name) and item.is_dir()]:
            with contextlib.suppress(OSError):
                handle = os.open(left, os.O_RDONLY)
                try:
                    lock(handle, wait=False)  # fails where its writer lives
                    shutil.rmtree(left, ignore_errors=True)
                finally:
                    os.close(handle)


def lock(handle: int, *, wait: bool) -> None:
    """Locks an open file until it is closed; OSError where that cannot be done."""
    try:
        import fcntl  # noqa: PLC0415  (not on Windows)
    except ImportError as error:
        raise OSError(errno.ENOLCK, "this system has no file locks") from error
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
