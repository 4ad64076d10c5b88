"""Pickles that would create a file, and archives with parts replaced."""

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from vitrail.strict_json import from_json, to_json


class Creates:
    """Pickled, it is a call that creates a file where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def pickled(file: Path) -> bytes:
    """A plain pickle that would create the file."""
    return pickle.dumps(Creates(file))


def saved(file: Path) -> bytes:
    """The same as `torch.save` writes it."""
    stored = io.BytesIO()
    torch.save({"model": Creates(file)}, stored)
    return stored.getvalue()


def rewritten(
    source: Path, target: Path, changes: Mapping[str, bytes | None] | None = None, *, compress: bool = False
) -> Path:
    """A copy of a .pt2 with some parts replaced, added, or (None) left out."""
    changes = dict(changes or {})
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        parts: dict[str, bytes | None] = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
        for name, data in (parts | changes).items():
            if data is not None:
                kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
                new.writestr(f"{root}/{name}", data, compress_type=kind)
    return target


def with_json(source: Path, target: Path, part: str, change: Callable[[Any], object]) -> Path:
    """A copy of a .pt2 whose JSON part was changed in place."""
    with zipfile.ZipFile(source) as old:
        root = old.namelist()[0].partition("/")[0]
        content = from_json(old.read(f"{root}/{part}"))
    change(content)
    return rewritten(source, target, {part: to_json(content).encode()})
