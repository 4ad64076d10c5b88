"""Files that are written completely or not at all: text, JSON and tensors; and a digest of tensors."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import WriteError


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
    write_atomically(file, lambda new: new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8"))


def write_atomically(file: Path, write: Callable[[Path], object], *, stale: Path | None = None) -> None:
    """Calls `write` with a temporary file, syncs it to disk, removes `stale`, and renames it to `file`.

    On an error the temporary file is removed and `file` stays as it was; an error of the disk is a WriteError.
    """
    if file.is_dir():
        raise WriteError(f"cannot write {file}: it is a folder; choose another path")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(file) as new:
            write(new)
            _sync(new)
            new.chmod(0o666 & ~_umask())
            if stale is not None:
                stale.unlink(missing_ok=True)
            new.replace(file)
        _sync(file.parent)
    except (OSError, SafetensorError) as error:
        raise WriteError(f"cannot write {file}: {_reason(error)}; an existing file is unchanged") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def _temporary(file: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


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
