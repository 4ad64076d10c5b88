"""Targets with one value for each pixel: references to their files, and how their pixels move.

A dataset holds a reference to each file, a row of bytes, so that it can be split, pickled and fingerprinted as any
values; pixels are read when images are.

    what the kind needs to read it | size, 8 bytes | date, 8 bytes | the absolute path, padded with zeros
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

_FACTS = struct.Struct("<qq")


def references(paths: Sequence[Path | None], heads: Sequence[bytes]) -> Tensor:
    """References to files with the bytes of their kind, all equally long; None for an image without one: N L uint8."""
    rows = [head + _facts(path) + _name(path) for path, head in zip(paths, heads, strict=True)]
    longest = max(map(len, rows), default=1)
    data = bytearray(b"".join(row.ljust(longest, b"\0") for row in rows))
    return torch.frombuffer(data, dtype=torch.uint8).view(len(rows), longest) if rows else torch.empty(0, 1).byte()


def head_of(value: Tensor, length: int) -> bytes:
    """The bytes of its kind of one reference L."""
    return value[:length].numpy().tobytes()


def path_of(value: Tensor, length: int) -> Path | None:
    """The file of one reference L whose kind has `length` bytes; None if the image has none."""
    name = value[length + _FACTS.size :].numpy().tobytes().rstrip(b"\0")
    return Path(name.decode("utf-8", "surrogateescape")) if name else None


def has_file(values: Tensor, length: int) -> Tensor:
    """Which references name a file: N L -> N bool."""
    return (values[:, length + _FACTS.size :] > 0).any(dim=1)


def _facts(path: Path | None) -> bytes:
    if path is None:
        return bytes(_FACTS.size)
    try:
        facts = path.stat()
    except OSError:
        return bytes(_FACTS.size)
    return _FACTS.pack(facts.st_size, facts.st_mtime_ns)


def _name(path: Path | None) -> bytes:
    return b"" if path is None else str(path.absolute()).encode("utf-8", "surrogateescape")


def stretch(values: Tensor, maps: Tensor, size: tuple[int, int], outside: float) -> Tensor:
    """Values of a model's input at the size of the picture, each of the nearest pixel: H W -> *size.

    `maps` 2 3 is one of `Preprocess.fit`: it scales and shifts, so that rows and columns can be found apart.
    """
    (across, _, left), (_, down, top) = maps.double().tolist()
    row = ((torch.arange(size[0], dtype=torch.float64) + 0.5 - top) / down).floor().long()
    column = ((torch.arange(size[1], dtype=torch.float64) + 0.5 - left) / across).floor().long()
    height, width = values.shape
    found = values[row.clamp(0, height - 1)][:, column.clamp(0, width - 1)]
    found[(row < 0) | (row >= height)] = outside
    found[:, (column < 0) | (column >= width)] = outside
    return found


def move_pixels(values: Tensor, maps: Tensor, size: tuple[int, int], outside: float) -> Tensor:
    """Each new pixel takes the value at the place that its map leads to: B H W, B 2 3 -> B *size."""
    height, width = values.shape[1:]
    x = torch.arange(size[1], device=values.device) + 0.5  # W'
    y = (torch.arange(size[0], device=values.device) + 0.5)[:, None]  # H' 1
    terms = maps[:, :, :, None, None]  # B 2 3 1 1
    points = (terms[:, :, 0] * x + terms[:, :, 1] * y + terms[:, :, 2]).floor()  # B 2 H' W'
    column, row = points.unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    at = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
    found = values.flatten(1).gather(1, at.flatten(1)).view_as(at)
    return torch.where(inside, found, torch.full((), outside, dtype=values.dtype, device=values.device))
