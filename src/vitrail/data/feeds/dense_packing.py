"""Targets with one value for each pixel, packed into files of their own; of rendered scenes by processes."""

import hashlib
import re
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.dataset import Dataset, Retargeted
from vitrail.data.feeds import pack_file
from vitrail.data.feeds.cold import Progress
from vitrail.data.feeds.decode_blocks import open_pool, source_of
from vitrail.data.feeds.decode_pool import DecodePool, Task
from vitrail.data.feeds.dense import dense_fields, fitted
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Target
from vitrail.errors import BrokenImage, DataError, Notice
from vitrail.locks import locked

_BLOCK = 64  # images that are written and checked together
_LOOK = 1.0  # seconds to wait for a process at a time


class PackedTarget(NamedTuple):
    """The pixels of a target M H W, mapped from a file, and their checksum."""

    values: Tensor
    checksum: str


def pack_targets(
    dataset: Dataset, ids: Tensor, sizes: Tensor, fit: Preprocess, *, folder: Path, workers: int,
    progress: Progress | None = None,
) -> dict[str, PackedTarget]:  # fmt: skip
    """The pixels of dense targets for the images `ids` M of these sizes M 2: mapped from files, built if need be."""
    return {
        name: _packed(dataset, name, ids, sizes, fit, folder=folder, workers=workers, progress=progress)
        for name in dense_fields(dataset.schema)
    }


def _packed(
    dataset: Dataset, name: str, ids: Tensor, sizes: Tensor, fit: Preprocess, *, folder: Path, workers: int,
    progress: Progress | None,
) -> PackedTarget:  # fmt: skip
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
            pack_file.write(path, _counted(blocks, len(ids), progress), lambda: expected)
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


def _counted(blocks: Iterator[Tensor], total: int, progress: Progress | None) -> Iterator[Tensor]:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        if progress is not None:
            progress(done, total)


def _blocks(
    dataset: Dataset, name: str, ids: Tensor, sizes: Tensor, fit: Preprocess, *, workers: int
) -> Iterator[Tensor]:
    """The pixels of a target, M H W in blocks."""
    target, values, indices = dataset.schema[name], dataset.targets[name], ids.tolist()
    # Processes decode the images again, as they have no smaller unit of work; of files, threads are quick enough.
    only = Retargeted(dataset, {name: values}, {name: target})
    processes = None if source_of(dataset).computed else False
    pool = open_pool(only, fit, workers=workers, count=len(indices), processes=processes)
    if pool is not None:
        try:
            yield from _by_processes(pool, name, indices)
        finally:
            pool.close()
        return

    def load(at: int) -> Tensor:
        height, width = sizes[at].tolist()
        try:
            return fitted(target, values[indices[at]], (height, width), fit, image=dataset.where(indices[at]))
        except BrokenImage as error:
            raise _unusable(str(error)) from error

    with ThreadPoolExecutor(workers) as threads:
        for start in range(0, len(indices), _BLOCK):
            yield torch.stack(list(threads.map(load, range(start, min(start + _BLOCK, len(indices))))))


def _by_processes(pool: DecodePool, name: str, indices: list[int]) -> Iterator[Tensor]:
    """Blocks in order; each process works on a few images at a time."""
    assert _BLOCK % pool.chunk == 0  # noqa: S101  (a block is made of whole tasks)
    starts = deque(range(0, len(indices), pool.chunk))
    found: dict[int, Tensor] = {}  # by the number of the first row
    for first in range(0, len(indices), _BLOCK):
        rows = range(first, min(first + _BLOCK, len(indices)))
        while not all(start in found for start in rows[:: pool.chunk]):
            while starts and pool.has_room:
                start = starts.popleft()
                some = range(start, min(start + pool.chunk, len(indices)))
                pool.send(Task([indices[row] for row in some], some, None))
            for done in pool.receive(_LOOK):
                if broken := next((answer for answer in done.answers if isinstance(answer, str)), None):
                    raise _unusable(broken)
                pixels = pool.layout.views(done.pixels)[name]
                found[done.task.rows[0]] = pixels[: len(done.answers)].clone()
        yield torch.cat([found.pop(start) for start in rows[:: pool.chunk]])


def _unusable(reason: str) -> DataError:
    return DataError(f"{reason}. Repair or remove it; `vitrail doctor` lists all such files")
