"""Targets with one value for each pixel in feeds: read and moved with their images, packed into files of their own."""

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.dataset import Dataset
from vitrail.data.feeds import pack_file
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema, Target
from vitrail.errors import BrokenImage, DataError, Notice
from vitrail.locks import locked

_BLOCK = 64  # images that are written and checked together
_ALIGN = 8  # bytes


class PackedTarget(NamedTuple):
    """The pixels of a target M H W, mapped from a file, and their checksum."""

    values: Tensor
    checksum: str


def dense_fields(schema: Schema) -> dict[str, Target]:
    """The fields whose values are pixels."""
    return {name: target for name, target in schema.items() if target.dense is not None}


def dense_bytes(schema: Schema, size: tuple[int, int]) -> int:
    """The bytes that these take for one image of a size."""
    return sum(target.dense.itemsize * prod(size) for target in schema.values() if target.dense is not None)


def fitted(target: Target, value: Tensor, size: tuple[int, int], fit: Preprocess, *, image: str) -> Tensor:
    """The pixels of one image of a height and width, moved as `fit` moves the image; BrokenImage if sizes differ."""
    pixels = target.load(value)
    if pixels.numel() > 1 and tuple(pixels.shape) != size:
        raise BrokenImage(
            f"{image} has {size[1]} x {size[0]} pixels, its {target.field} ({target.text(value)}) {pixels.shape[1]} x "
            f"{pixels.shape[0]}; they must be the same"
        )
    return target.move(pixels[None], fit.maps(torch.tensor([size])), fit.image_size)[0]  # H W


def also_called(number: int) -> str:
    """The name in a `SampleLayout` of an image at another size: no field of a schema begins so."""
    return f" {number}"


class SampleLayout:
    """Where the image and the pixels of targets of one sample lie in a row of bytes; the image is called "".

    `more` are other ways to fit it, for images that are wanted at several sizes.
    """

    def __init__(self, fit: Preprocess, schema: Schema, more: Sequence[Preprocess] = ()) -> None:
        self.parts: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"": (torch.uint8, (fit.channels, *fit.image_size))}
        for name, target in dense_fields(schema).items():
            assert target.dense is not None  # noqa: S101  (just chosen by that)
            shapes[name] = (target.dense, fit.image_size)
        for number, other in enumerate(more):
            shapes[also_called(number)] = (torch.uint8, (other.channels, *other.image_size))
        self.stride = 0
        for name, (dtype, shape) in shapes.items():
            count = prod(shape) * dtype.itemsize
            self.parts[name] = (self.stride, self.stride + count, dtype, shape)
            self.stride += -(-count // _ALIGN) * _ALIGN

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The parts of rows of bytes: ... stride uint8 -> ... shape by name."""
        return {
            name: rows[..., start:stop].view(dtype).unflatten(-1, shape)
            for name, (start, stop, dtype, shape) in self.parts.items()
        }

    def empty(self, count: int, *, pinned: bool) -> dict[str, Tensor]:
        """Room for a batch, by name."""
        return {
            name: torch.empty(count, *shape, dtype=dtype, pin_memory=pinned)
            for name, (_, _, dtype, shape) in self.parts.items()
        }


def pack_targets(
    dataset: Dataset, ids: Tensor, sizes: Tensor, fit: Preprocess, *, folder: Path, workers: int
) -> dict[str, PackedTarget]:
    """The pixels of dense targets for the images `ids` M of these sizes M 2: mapped from files, built if need be."""
    return {
        name: _packed(dataset, name, ids, sizes, fit, folder=folder, workers=workers)
        for name in dense_fields(dataset.schema)
    }


def _packed(
    dataset: Dataset, name: str, ids: Tensor, sizes: Tensor, fit: Preprocess, *, folder: Path, workers: int
) -> PackedTarget:
    values, target = dataset.targets[name][ids], dataset.schema[name]
    state = hashlib.sha256(f"{target!r} {to_dict(fit)!r}".encode())
    for tensor in (values, sizes):
        state.update(tensor.contiguous().numpy().tobytes())
    expected = {"fingerprint": state.hexdigest(), "count": len(ids)}
    path = folder / _file_name(dataset, name, ids, fit)
    try:
        return _open(path, expected, target, fit)
    except FileNotFoundError:
        pass
    except pack_file.Unusable as reason:
        warnings.warn(f"{path} is rebuilt: {reason}", Notice, stacklevel=3)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock"), what=str(path), wait=True):
        try:
            return _open(path, expected, target, fit)  # another process may have built it meanwhile
        except (FileNotFoundError, pack_file.Unusable):
            blocks = _blocks(dataset, name, ids, sizes, fit, workers=workers)
            pack_file.write(path, blocks, lambda: expected)
    return _open(path, expected, target, fit)


def _file_name(dataset: Dataset, field: str, ids: Tensor, fit: Preprocess) -> str:
    """The same for the same images before and after a change of their targets, so that a stale file is replaced."""
    where = [dataset.where(int(index)) for index in (ids[0], ids[-1])]
    origin = hashlib.sha256(
        f"{dataset.name}\n{where}\n{len(ids)}\n{fit!r}".encode(errors="surrogateescape")
    ).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset.name).strip("-.")[:40] or "data"
    return f"{name}-{field}-{fit.image_size[0]}x{fit.image_size[1]}-{origin}.pack"


def _open(path: Path, expected: Mapping[str, Any], target: Target, fit: Preprocess) -> PackedTarget:
    pixels, about = pack_file.read(path)
    if {key: about.get(key) for key in expected} != dict(expected):
        raise pack_file.Unusable("the targets have changed")
    assert target.dense is not None  # noqa: S101  (the caller chose it by that)
    return PackedTarget(pixels.view(target.dense).view(-1, *fit.image_size), about["pixels"])  # M H W


def _blocks(
    dataset: Dataset, name: str, ids: Tensor, sizes: Tensor, fit: Preprocess, *, workers: int
) -> Iterator[Tensor]:
    target, values = dataset.schema[name], dataset.targets[name]

    def load(at: int) -> Tensor:
        height, width = sizes[at].tolist()
        index = int(ids[at])
        try:
            return fitted(target, values[index], (height, width), fit, image=dataset.where(index))
        except BrokenImage as error:
            raise DataError(f"{error}. Repair or remove it; `vitrail doctor` lists all such files") from error

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(ids), _BLOCK):
            yield torch.stack(list(pool.map(load, range(start, min(start + _BLOCK, len(ids))))))
