"""The packed cache: every image of a data set decoded once, at one size, uint8, mapped into memory."""

import hashlib
import os
import re
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data import cache_file
from vitrail.data.broken import Skipped, Tally, named
from vitrail.data.dataset import Carved, Dataset, Relabelled, Subset
from vitrail.data.known import cache_folder
from vitrail.errors import BrokenImage, DataError, InputError, Notice
from vitrail.report import show

_BLOCK = 4 << 20  # bytes of pixels that are written and checked together
_IN_MEMORY = 1 << 30  # bytes: arrays that fit are converted without a file
_CHECKED = 256 << 20  # bytes in memory that a checksum reads: a fraction of a second
_AHEAD = 2  # blocks that are decoded while one is written

Progress = Callable[[int, int], None]  # images done, and of how many


@dataclass(frozen=True, kw_only=True)
class Packed:
    """All images of a data set that could be read, in its order."""

    images: Tensor  # M C H W uint8; or more, of which these are `rows`
    labels: Tensor  # M int64, or M K float32
    ids: Tensor  # M int64: the samples' numbers in the data set
    classes: tuple[str, ...]
    name: str
    skipped: Skipped = ()
    pixels: str = ""  # a checksum of the images, where the file that they are mapped from has one
    rows: Tensor | None = None  # M int64: where each lies in `images`, where that is the whole that these are a part of

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    def checksum(self) -> str:
        """Tells these images and labels from others, wherever they lie; of very many in memory it looks at some."""
        state = hashlib.sha256(f"{tuple(self.images.shape)} {self.classes} {self.pixels}".encode())
        for tensor in (self.ids, self.labels, *(() if self.rows is None else (self.rows,))):
            state.update(tensor.contiguous().numpy().data.cast("B"))
        step = max(1, -(-self.images.numel() // _CHECKED))
        for image in () if self.pixels else self.images[::step]:
            state.update(image.contiguous().numpy().data.cast("B"))
        return state.hexdigest()[:16]


def fit(images: Tensor, *, size: tuple[int, int], channels: int) -> Tensor:
    """B C H W uint8 -> the largest window of the wanted shape around each centre, resized by antialiased bicubic.

    Grey becomes RGB by repetition, RGB grey by luma (ITU-R 601). An image of that size is not touched.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or channels not in (1, 3):
        raise InputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}, to get {channels} channels; they must be "
            f"uint8, B C H W with 1 or 3 channels, and get 1 or 3"
        )
    if images.shape[1] > channels:
        images = _luma(images)
    height, width = images.shape[2:]
    if (height, width) != size:
        # Cut before resizing: of a banner of 10 x 20,000 pixels no copy is blown up first.
        rows = min(height, max(1, round(width * size[0] / size[1])))
        columns = min(width, max(1, round(height * size[1] / size[0])))
        top, left = (height - rows) // 2, (width - columns) // 2
        images = images[:, :, top : top + rows, left : left + columns]
        if (rows, columns) != size:
            images = F.interpolate(images, size=size, mode="bicubic", antialias=True)
    return images.expand(-1, channels, -1, -1)


def _luma(images: Tensor) -> Tensor:
    """B 3 H W -> B 1 H W, rounded as Pillow does."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(1, 3, 1, 1)
    return (((images.int() * weights).sum(dim=1, keepdim=True) + 0x8000) >> 16).to(torch.uint8)


def default_folder() -> Path:
    """Where packed images are kept: VITRAIL_CACHE, or the user's cache folder."""
    return cache_folder() / "packed"


def pack(
    dataset: Dataset,
    *,
    size: tuple[int, int],
    channels: int,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    tally: Tally | None = None,
    whole: bool = False,
) -> Packed:
    """All images of a data set at one size; decoded the first time, mapped from a file ever after.

    The file is found again by the data set's name, place and size, and rebuilt with a notice where the data set has
    changed or the file is damaged (`verify` checks every byte). Images that cannot be read are left out and listed;
    too many are an error: `tally` counts those of all splits of a source, and without one the data set stands alone.
    Images that lie in memory already need no file. Labels that were put on images are put on what is packed, so that
    other classes decode nothing. With `whole`, of a part that chance has chosen all that it was chosen from is kept, so
    that another choice decodes nothing.
    """
    if len(dataset) == 0:
        raise DataError(f"{dataset.name} has no images")
    options: dict[str, Any] = {"folder": folder, "workers": workers, "progress": progress, "verify": verify}
    if isinstance(dataset, Relabelled):
        found = pack(dataset.whole, size=size, channels=channels, tally=tally, whole=whole, **options)
        return replace(found, labels=dataset.labels[found.ids], classes=dataset.classes)
    if whole and dataset.array is None and isinstance(dataset, Carved):
        return _selected(dataset, pack(dataset.whole, size=size, channels=channels, tally=tally, **options))
    tally = tally or Tally(len(dataset))
    count = len(dataset) * channels * size[0] * size[1]
    if (array := dataset.array) is not None and (tuple(array.shape[2:]) == size or count <= _IN_MEMORY):
        return _packed(dataset, _converted(array, size, channels, progress), {})
    path = (folder or default_folder()) / _file_name(dataset, size, channels)
    expected = {"fingerprint": dataset.fingerprint, "size": list(size), "channels": channels, "count": len(dataset)}
    try:
        return _kept(dataset, path, expected, workers=workers, progress=progress, verify=verify, tally=tally)
    except OSError as error:
        raise _not_written(path, error, count) from error


def _kept(
    dataset: Dataset,
    path: Path,
    expected: dict[str, Any],
    *,
    workers: int | None,
    progress: Progress | None,
    verify: bool,
    tally: Tally,
) -> Packed:
    """The packed images of a file, which is built where it is missing or cannot be used."""
    try:
        return _counted(_open(dataset, path, expected, verify=verify), tally)
    except FileNotFoundError:
        pass
    except cache_file.Unusable as reason:
        warnings.warn(f"{path} is built again: {reason}", Notice, stacklevel=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    with cache_file.only_one(path):
        try:
            found = _open(dataset, path, expected, verify=verify)  # another process may have built it meanwhile
            return _counted(found, tally)
        except (FileNotFoundError, cache_file.Unusable):
            _build(dataset, path, expected, workers=workers, progress=progress, tally=tally)
    return _open(dataset, path, expected, verify=False)


def _counted(packed: Packed, tally: Tally) -> Packed:
    """The same, its broken images told to the tally."""
    tally.add(packed.skipped)
    return packed


def _file_name(dataset: Dataset, size: tuple[int, int], channels: int) -> str:
    """The same for the same data set before and after a change, so that a stale file is found and replaced."""
    which = "part" if isinstance(dataset, Subset) else "whole"  # either may begin with the same image
    first = dataset.where(0)
    first = str(Path(first).absolute()) if os.sep in first else first  # there may be photos/ in more than one place
    place = hashlib.sha256(f"{dataset.name}\n{first}\n{which}".encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset.name).strip("-.")[:40] or "data"
    return f"{name}-{size[0]}x{size[1]}x{channels}-{place}.pack"


def _not_written(path: Path, error: OSError, count: int) -> DataError:
    return DataError(
        f"packed images cannot be kept in {path.parent}: {error.strerror or error}. About {show(count, 'bytes')} are "
        f"needed; name another folder, or set VITRAIL_CACHE to one on a disk with room that you may write to"
    )


def _packed(dataset: Dataset, images: Tensor, broken: dict[int, str], pixels: str = "") -> Packed:
    ids = torch.tensor([index for index in range(len(dataset)) if index not in broken])
    skipped = _told(dataset, dict(sorted(broken.items())))
    if not len(ids):
        raise DataError(f"no image of {dataset.name} can be read: {named(skipped)}. Repair them, or add others")
    return Packed(
        images=images,
        labels=dataset.labels[ids],
        ids=ids,
        classes=dataset.classes,
        name=dataset.name,
        skipped=skipped,
        pixels=pixels,
    )


def _selected(part: Carved, whole: Packed) -> Packed:
    """The images of a part, where they lie among those of its whole."""
    row_of, reasons = {number: row for row, number in enumerate(whole.ids.tolist())}, dict(whole.skipped)
    broken = {at: reasons[part.where(at)] for at, number in enumerate(part.indices) if number not in row_of}
    found = _packed(part, whole.images, broken, whole.pixels)
    return replace(found, rows=torch.tensor([row_of[part.indices[at]] for at in found.ids.tolist()]))


def _told(dataset: Dataset, broken: dict[int, str]) -> Skipped:
    return tuple((dataset.where(index), reason) for index, reason in broken.items())


def _converted(array: Tensor, size: tuple[int, int], channels: int, progress: Progress | None) -> Tensor:
    """N C H W at the wanted size and channels, without a copy where none is needed."""
    if tuple(array.shape[2:]) == size and array.shape[1] <= channels:
        return array.expand(-1, channels, -1, -1)
    result = torch.empty(len(array), channels, *size, dtype=torch.uint8)
    for start in range(0, len(array), 1024):
        stop = min(start + 1024, len(array))
        result[start:stop] = fit(array[start:stop], size=size, channels=channels)
        if progress is not None:
            progress(stop, len(array))
    return result


def _open(dataset: Dataset, path: Path, expected: dict[str, Any], *, verify: bool) -> Packed:
    """The packed images of a file that is whole and of this data set; Unusable or OSError otherwise."""
    pixels, about = cache_file.read(path, whole=verify)
    if {key: about[key] for key in expected} != expected:
        raise cache_file.Unusable("the data set, or which part of it is asked for, has changed since")
    broken = {int(index): reason for index, reason in about["broken"].items()}
    images = pixels.view(len(dataset) - len(broken), expected["channels"], *expected["size"])  # M C H W
    return _packed(dataset, images, broken, about["pixels"])


def _build(
    dataset: Dataset,
    path: Path,
    expected: dict[str, Any],
    *,
    workers: int | None,
    progress: Progress | None,
    tally: Tally,
) -> None:
    size, channels = (expected["size"][0], expected["size"][1]), expected["channels"]
    pixels = channels * size[0] * size[1]
    needed, free = len(dataset) * pixels, shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(None, f"only {show(free, 'bytes')} are free")
    broken: dict[int, str] = {}

    def blocks() -> Iterator[Tensor]:
        done = 0
        for results in _decoded(dataset, size, channels, workers=workers, block=max(1, _BLOCK // pixels)):
            good = [image for image in results if isinstance(image, Tensor)]
            new = {done + place: why for place, why in enumerate(results) if isinstance(why, str)}
            tally.add(_told(dataset, new))
            broken.update(new)
            done += len(results)
            if good:
                yield torch.cat(good)
            if progress is not None:
                progress(done, len(dataset))

    cache_file.write(path, blocks(), lambda: expected | {"broken": broken})


def _decoded(
    dataset: Dataset, size: tuple[int, int], channels: int, *, workers: int | None, block: int
) -> Iterator[Sequence[Tensor | str]]:
    """Blocks of images 1 C H W, or reasons in their place, in the data set's order."""
    pending: deque[list[Future[Tensor | str]]] = deque()
    with _threads(workers or min(32, _cores())) as pool:
        for start in range(0, len(dataset), block):
            indices = range(start, min(start + block, len(dataset)))
            pending.append([pool.submit(_one, dataset, index, size, channels) for index in indices])
            if len(pending) > _AHEAD:
                yield [future.result() for future in pending.popleft()]
        for futures in pending:
            yield [future.result() for future in futures]


def _one(dataset: Dataset, index: int, size: tuple[int, int], channels: int) -> Tensor | str:
    try:
        return fit(dataset.read(index)[None], size=size, channels=channels)
    except (BrokenImage, OSError) as error:
        return str(error)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads, as decoders release the interpreter's lock: processes took ten times as long to hand images over."""
    torch_threads = torch.get_num_threads()
    # Each is one of many: with threads of its own, torch would resize one image on all cores at once.
    pool = ThreadPoolExecutor(count, "decode", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(torch_threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
