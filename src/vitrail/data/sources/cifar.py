"""CIFAR-10 and CIFAR-100 from their original pickles, in a folder or archive, read without executing them."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.dataset import Found
from vitrail.data.sources.arrays import Arrays, array_labels, array_target
from vitrail.errors import DataError
from vitrail.files import open_regular, read_bytes

_AXES = 8  # of an array at most
_MEMBER_LIMIT = 200_000_000  # bytes; the largest real one has 155 M


class _Layout(NamedTuple):
    """The files of one dataset and the keys in them."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str


_LAYOUTS = (
    _Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        ("test_batch",),
        "batches.meta",
        "labels",
        "label_names",
    ),
    _Layout("cifar-100-python", ("train",), ("test",), "meta", "fine_labels", "fine_label_names"),
)


def looks_like_cifar(path: Path) -> bool:
    """Whether a path is a folder or archive of CIFAR pickles."""
    return _folder_of(path) is not None or _is_archive(path)


def read_cifar(path: Path) -> Found:
    """Train and test of CIFAR in a folder, in a folder below it, or in the published .tar.gz."""
    if (known := _folder_of(path)) is not None:
        folder, layout = known
        names = (layout.meta, *layout.train, *layout.test)
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise DataError(f"{folder} is incomplete: {', '.join(missing)} missing; unpack the archive again")
        try:
            contents = {name: read_bytes(folder / name, _MEMBER_LIMIT) for name in names}
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error
    elif _is_archive(path):
        layout, contents = _unpacked(path)
    else:
        raise DataError(f"{path} has no CIFAR pickles; expected the folder {_LAYOUTS[0].folder} or its .tar.gz")
    meta = load_pickle(contents[layout.meta], f"{path}: {layout.meta}")
    classes = tuple(_text(name) for name in _entry(meta, layout.names, list, f"{path}: {layout.meta}"))
    parts = [
        _dataset(path, (split, names), contents, layout, classes)
        for split, names in (("train", layout.train), ("test", layout.test))
    ]
    note = f"{path} is {layout.folder}: train {len(parts[0]):,}, test {len(parts[1]):,} images."
    return Found(parts[0], test=parts[1], notes=(note,))


def load_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict of a pickle of arrays, bytes, strings, numbers, lists and dicts; anything else is refused."""
    try:
        loaded = _Restricted(io.BytesIO(data), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{name} is damaged: {type(error).__name__}: {error}; unpack the archive again") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{name} holds a {type(loaded).__name__}, not a dict; unpack the archive again")
    try:
        return {_text(key): value.array() if isinstance(value, _Stored) else value for key, value in loaded.items()}
    except (DataError, ValueError) as error:  # or a side with too many digits to be shown
        raise DataError(f"{name}: {error}; unpack the archive again") from error


def _text(value: object) -> str:
    """A name; pickles from Python 2 hold bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """The constructor of bytes in old pickle protocols of Python 3."""
    if encoding != "latin1":
        raise DataError(f"the pickle uses the encoding {encoding!r}, which these datasets do not use")
    return text.encode("latin1")


class _Bytes:
    """In place of numpy's dtype: image data are bytes, and nothing else is read."""

    def __init__(self, code: object = None, *_: object) -> None:
        if code not in ("u1", "|u1"):
            raise DataError(f"the pickle has an array of type {code!r:.40}; image data are bytes (u1)")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which bytes do not have."""


class _Stored:
    """What a pickle says of an array; numpy's own reading of a damaged one can end the process."""

    def __init__(self, *_: object) -> None:
        self.shape: object = None
        self.data: object = b""

    def __setstate__(self, state: tuple[object, object, object, object, object]) -> None:
        _, self.shape, kind, columns_first, self.data = state
        if not isinstance(kind, _Bytes) or columns_first:
            raise DataError("the pickle has an array that is not stored row by row as bytes")

    def array(self) -> np.ndarray[Any, Any]:
        """The array, held against the number of its bytes."""
        data = self.data.encode("latin1") if isinstance(self.data, str) else self.data
        if not isinstance(data, bytes | bytearray) or not isinstance(self.shape, tuple):
            raise DataError("the pickle has an array without data or without a shape")
        sides = [side for side in self.shape if type(side) is int and 0 <= side <= len(data)]
        if len(sides) != len(self.shape) or len(sides) > _AXES or prod(sides) != len(data):
            raise DataError(f"the pickle has an array of shape {self.shape!r:.80} with {len(data):,} bytes")
        return np.frombuffer(data, np.uint8).reshape(sides)


def _stored(*_: object) -> _Stored:
    return _Stored()


def _from_buffer(data: object, kind: object, shape: object, order: object = "C", *_: object) -> _Stored:
    """An array of protocol 5."""
    found = _Stored()
    found.__setstate__((1, shape, kind, order != "C", data))
    return found


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _stored,
    ("numpy._core.multiarray", "_reconstruct"): _stored,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Stored,
    ("numpy", "dtype"): _Bytes,
    ("_codecs", "encode"): _latin1,
}


class _Restricted(pickle.Unpickler):
    """Allows only the names that the pickle of an array needs, and none of them is numpy's: no code is executed."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"the pickle uses {module}.{name}, which image data does not need; do not trust it"
            ) from None


def _entry(loaded: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    if not isinstance(value := loaded.get(key), kind):
        raise DataError(f"{name} has no {kind.__name__} by the name {key!r}; unpack the archive again")
    return value


def _dataset(
    path: Path,
    part: tuple[str, Sequence[str]],
    contents: Mapping[str, bytes],
    layout: _Layout,
    classes: tuple[str, ...],
) -> Arrays:
    """One split, given by its name and the names of its pickles."""
    (split, names), images, labels = part, [], []
    for name in names:
        where = f"{path}: {name}"
        loaded = load_pickle(contents[name], where)
        pixels = _entry(loaded, "data", np.ndarray, where)
        if pixels.ndim != 2 or pixels.shape[1] != 3072:
            raise DataError(f"{where} holds an array of shape {pixels.shape}; expected N x 3072 bytes")
        images.append(pixels.reshape(-1, 3, 32, 32))
        labels += _entry(loaded, layout.labels, list, where)
        if len(labels) != sum(map(len, images)):
            raise DataError(f"{where} has {len(pixels):,} images, but a different number of labels")
    title = f"{path} ({split})"
    files = [path / name for name in names] if path.is_dir() and (path / names[0]).exists() else [path]
    return Arrays(
        np.concatenate(images),
        *array_target(array_labels(np.asarray(labels), title, classes=classes), classes),
        name=title,
        origin=f"{path}:{split}",
        files=files,
    )


def _folder_of(path: Path) -> tuple[Path, _Layout] | None:
    """The folder with the pickles: this one, or the usual one in it."""
    for layout in _LAYOUTS:
        for folder in (path, path / layout.folder):
            if (folder / layout.meta).is_file() and (folder / layout.train[0]).is_file():
                return folder, layout
    return None


def _is_archive(path: Path) -> bool:
    return path.is_file() and path.name.endswith((".tar.gz", ".tgz")) and path.name.startswith("cifar")


def _unpacked(path: Path) -> tuple[_Layout, dict[str, bytes]]:
    """The files of the archive, in memory; nothing is written to disk."""
    contents: dict[str, bytes] = {}
    wanted = {name for layout in _LAYOUTS for name in (layout.meta, *layout.train, *layout.test)}
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if member.isfile() and name in wanted and member.size <= _MEMBER_LIMIT:
                    opened = archive.extractfile(member)
                    contents[name] = opened.read() if opened is not None else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated: {error}; download it again") from error
    for layout in _LAYOUTS:
        if all(name in contents for name in (layout.meta, *layout.train, *layout.test)):
            return layout, contents
    raise DataError(f"{path} is incomplete: files of the dataset are missing; download it again")
