"""Packed images: every image of a data set decoded once, at one size, uint8, mapped into memory."""

import base64
import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config import from_dict
from vitrail.data.broken import Skipped, Tally, named
from vitrail.data.dataset import Dataset, RandomSubset, Retargeted, Subset, Targets, target_digest
from vitrail.data.feeds import pack_file
from vitrail.data.feeds.cold import Progress, Wanted, build, rows_in
from vitrail.data.feeds.decode_blocks import usable_cores
from vitrail.data.feeds.dense import dense_bytes
from vitrail.data.feeds.dense_packing import pack_targets
from vitrail.data.feeds.feed import ImageSet, aspect_of, geometry, moved
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.catalogue import cache_folder
from vitrail.data.targets import Schema
from vitrail.errors import DataError, Notice
from vitrail.locks import locked
from vitrail.report import show

_IN_MEMORY = 1 << 30  # bytes: arrays that fit are converted without a file
_CHECKED = 256 << 20  # bytes in memory that a checksum reads: a fraction of a second


@dataclass(frozen=True, kw_only=True)
class Packed(ImageSet):
    """All images of a data set that could be read, in its order."""

    images: Tensor  # M C H W uint8; or more images, of which `rows` are these
    targets: Targets  # M ... by field
    ids: Tensor  # M int64: the samples' numbers in the data set
    sizes: Tensor  # M 2 int32: height and width of each image as it was decoded
    schema: Schema
    name: str
    stored: Preprocess  # how images were fitted into the stored size
    skipped: Skipped = ()
    pixels: str = ""  # a checksum of the images, where the file that they are mapped from has one
    target_pixels: Mapping[str, str] = field(default_factory=dict)  # the same of targets with a value for each pixel
    rows: Tensor | None = None  # M int64: the row of each in `images`, where that holds more than these

    def __len__(self) -> int:
        return len(self.ids)

    def aspects(self, device: torch.device | str = "cpu") -> Tensor | None:
        """By the sample's number: how much wider an image was than it is stored; None where shapes were kept."""
        if self.stored.resize != "squash":
            return None
        found = torch.ones(int(self.ids.max()) + 1)
        found[self.ids] = aspect_of(self.sizes, self.stored.image_size)
        return found.to(device)

    def checksum(self) -> str:
        """Tells these images and targets from others, in any folder; of very many in memory only some are read."""
        state = hashlib.sha256(f"{tuple(self.images.shape)} {self.pixels}".encode())
        plain = {name: target for name, target in self.schema.items() if name not in self.target_pixels}
        state.update(target_digest(plain, self.targets).encode())
        state.update("".join(self.target_pixels.values()).encode())
        for tensor in (self.ids, *(() if self.rows is None else (self.rows,))):
            state.update(tensor.contiguous().numpy().data.cast("B"))
        step = max(1, -(-self.images.numel() // _CHECKED))
        for image in () if self.pixels else self.images[::step]:
            state.update(image.contiguous().numpy().data.cast("B"))
        return state.hexdigest()[:16]


def default_folder() -> Path:
    """Where packed images are kept: VITRAIL_CACHE, or the user's cache folder."""
    return cache_folder() / "packed"


def pack(
    dataset: Dataset,
    fit: Preprocess,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    tally: Tally | None = None,
    whole: bool = False,
    beside: Sequence[tuple[Dataset, Preprocess]] = (),
) -> Packed:
    """All images of a data set at one size: decoded the first time, mapped from a file after that.

    The file is found by the data set's name, location and size. It is rebuilt, with a notice, where the data set has
    changed or the file is damaged (`verify` checks every byte). Images that cannot be read are left out and listed;
    too many are an error: `tally` counts those of all splits of a source; without one, only this data set counts.
    Images that are in memory already need no file. The same images with other targets are not decoded again. With
    `whole`, all images that a random part was chosen from are packed, so that another seed decodes nothing. Where they
    have to be decoded, those of `beside`, which are parts of them, are packed in their own ways at the same time.
    """
    if len(dataset) == 0:
        raise DataError(f"{dataset.name} has no images")
    options: dict[str, Any] = {"folder": folder, "workers": workers, "progress": progress, "verify": verify}
    found = _images(dataset, geometry(fit), tally=tally, whole=whole, beside=beside, **options)
    folder, workers = folder or default_folder(), workers or min(32, usable_cores())
    try:
        dense = pack_targets(
            dataset, found.ids, found.sizes, found.stored, folder=folder, workers=workers, progress=progress
        )
    except OSError as error:
        needed = len(found) * dense_bytes(dataset.schema, found.stored.image_size)
        raise not_written(folder / "targets", error, needed) from error
    plain = {name: values[found.ids] for name, values in dataset.targets.items() if name not in dense}
    targets = moved(dataset.schema, plain, found.stored, found.sizes) | {
        name: one.values for name, one in dense.items()
    }
    checksums = {name: one.checksum for name, one in dense.items()}
    return replace(found, targets=targets, schema=dataset.schema, target_pixels=checksums)


def _images(
    dataset: Dataset,
    fit: Preprocess,
    *,
    tally: Tally | None,
    whole: bool,
    folder: Path | None,
    workers: int | None,
    progress: Progress | None,
    verify: bool,
    beside: Sequence[tuple[Dataset, Preprocess]],
) -> Packed:
    """The packed images of a data set, without their targets."""
    options: dict[str, Any] = {"folder": folder, "workers": workers, "progress": progress, "verify": verify}
    options["beside"] = beside
    if isinstance(dataset, Retargeted):
        return _images(dataset.whole, fit, tally=tally, whole=whole, **options)
    if whole and dataset.array is None and isinstance(dataset, RandomSubset):
        return _selected(dataset, _images(dataset.whole, fit, tally=tally, whole=False, **options))
    tally = tally or Tally(len(dataset))
    wanted, array = wanted_file(dataset, fit, folder), dataset.array
    if wanted is None:
        assert array is not None  # noqa: S101  (only arrays need no file)
        sizes = torch.tensor(array.shape[2:], dtype=torch.int32).expand(len(array), 2)
        return _packed(dataset, _converted(array, fit, progress), sizes, fit, broken={})
    missing = missing_parts(wanted, beside, folder)
    try:
        return _kept(wanted, missing, workers=workers, progress=progress, verify=verify, tally=tally)
    except OSError as error:
        raise not_written(
            wanted.path, error, sum(_count(one.dataset, one.fit) for one in [wanted, *missing])
        ) from error


def wanted_file(dataset: Dataset, fit: Preprocess, folder: Path | None = None) -> Wanted | None:
    """The file that a data set is packed into, and what is in it; None where its images need none."""
    path = pack_path(dataset, fit, folder)
    return None if path is None else Wanted(dataset=dataset, fit=geometry(fit), path=path)


def missing_parts(wanted: Wanted, beside: Sequence[tuple[Dataset, Preprocess]], folder: Path | None) -> list[Wanted]:
    """The files of `beside` that do not exist and can be made while the images of `wanted` are decoded."""
    found: dict[Path, Wanted] = {}
    for dataset, fit in beside:
        while isinstance(dataset, Retargeted):
            dataset = dataset.whole  # noqa: PLW2901
        if dataset.array is None and (one := wanted_file(dataset, fit, folder)) is not None:
            new = one.path != wanted.path and not one.path.exists()
            found |= {one.path: one} if new and rows_in(wanted.dataset, dataset) is not None else {}
    return list(found.values())


def pack_path(dataset: Dataset, fit: Preprocess, folder: Path | None = None) -> Path | None:
    """The file that a data set is packed into; None where its images are in memory and need no file."""
    array = dataset.array
    if array is not None and (tuple(array.shape[2:]) == fit.image_size or _count(dataset, fit) <= _IN_MEMORY):
        return None
    return (folder or default_folder()) / _file_name(dataset, geometry(fit))


def _count(dataset: Dataset, fit: Preprocess) -> int:
    """The bytes of all pixels of a data set."""
    return len(dataset) * fit.channels * fit.image_size[0] * fit.image_size[1]


def _kept(
    wanted: Wanted,
    missing: Sequence[Wanted],
    *,
    workers: int | None,
    progress: Progress | None,
    verify: bool,
    tally: Tally,
) -> Packed:
    """The packed images of a file, which is built first where it is missing or cannot be used."""
    path = wanted.path
    try:
        return _counted(_open(wanted, verify=verify), tally)
    except FileNotFoundError:
        pass
    except pack_file.Unusable as reason:
        warnings.warn(f"{path} is rebuilt: {reason}", Notice, stacklevel=3)
    with building([wanted, *missing]):
        try:
            found = _open(wanted, verify=verify)  # another process may have built it meanwhile
            return _counted(found, tally)
        except (FileNotFoundError, pack_file.Unusable):
            build(wanted, missing, workers=workers, progress=progress, tally=tally)
    return _open(wanted, verify=False)


@contextlib.contextmanager
def building(files: Sequence[Wanted]) -> Iterator[None]:
    """Keeps other processes from building the same files."""
    with contextlib.ExitStack() as locks:
        for path in (one.path for one in files):
            path.parent.mkdir(parents=True, exist_ok=True)
            locks.enter_context(locked(path.with_name(f".{path.name}.lock"), what=str(path), wait=True))
        yield


def is_packed(wanted: Wanted) -> bool:
    """Whether a file of these images exists and can be used."""
    try:
        _open(wanted, verify=False)
    except (OSError, pack_file.Unusable):
        return False
    return True


def _counted(packed: Packed, tally: Tally) -> Packed:
    """The same, with its broken images added to the tally."""
    tally.add(packed.skipped)
    return packed


def _file_name(dataset: Dataset, fit: Preprocess) -> str:
    """The same for the same data set before and after a change, so that a stale file is found and replaced."""
    which = "part" if isinstance(dataset, Subset) else "whole"  # either may begin with the same image
    if isinstance(dataset, RandomSubset) and dataset.fold is not None:
        which = "part of fold {} of {}".format(*dataset.fold)
    first = dataset.where(0)
    first = str(Path(first).absolute()) if os.sep in first else first  # there may be photos/ in more than one place
    origin = hashlib.sha256(f"{dataset.name}\n{first}\n{which}\n{fit!r}".encode(errors="surrogateescape")).hexdigest()[
        :12
    ]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset.name).strip("-.")[:40] or "data"
    return f"{name}-{fit.image_size[0]}x{fit.image_size[1]}x{fit.channels}-{origin}.pack"


def not_written(path: Path, error: OSError, count: int) -> DataError:
    """The error of a disk that does not take packed images of so many bytes."""
    cause = error.__cause__ or error
    reason = getattr(cause, "strerror", None) or cause
    return DataError(
        f"packed images cannot be written to {path.parent}: {reason}. About {show(count, 'bytes')} are needed: set "
        "VITRAIL_CACHE to a writable folder on a disk with enough space, or use --set feed=streamed"
    )


def _packed(
    dataset: Dataset, images: Tensor, sizes: Tensor, fit: Preprocess, *, broken: dict[int, str], pixels: str = ""
) -> Packed:
    ids = torch.tensor([index for index in range(len(dataset)) if index not in broken])
    skipped = _named(dataset, dict(sorted(broken.items())))
    if not len(ids):
        raise DataError(f"no image of {dataset.name} can be read: {named(skipped)}. Repair them, or add others")
    return Packed(
        images=images,
        targets={},
        ids=ids,
        sizes=sizes,
        schema=dataset.schema,
        name=dataset.name,
        stored=fit,
        skipped=skipped,
        pixels=pixels,
    )


def _selected(part: RandomSubset, whole: Packed) -> Packed:
    """The images of a part, as rows of the images of its whole."""
    row_of, reasons = {number: row for row, number in enumerate(whole.ids.tolist())}, dict(whole.skipped)
    broken = {at: reasons[part.where(at)] for at, number in enumerate(part.indices) if number not in row_of}
    rows = torch.tensor([row_of[number] for number in part.indices if number in row_of], dtype=torch.int64)
    found = _packed(part, whole.images, whole.sizes[rows], whole.stored, broken=broken, pixels=whole.pixels)
    return replace(found, rows=rows if whole.rows is None else whole.rows[rows])


def _named(dataset: Dataset, broken: dict[int, str]) -> Skipped:
    return tuple((dataset.where(index), reason) for index, reason in broken.items())


def _converted(array: Tensor, fit: Preprocess, progress: Progress | None) -> Tensor:
    """N C H W at the wanted size and channels, without a copy where none is needed."""
    if tuple(array.shape[2:]) == fit.image_size and array.shape[1] <= fit.channels and fit.crop == 1:
        return array.expand(-1, fit.channels, -1, -1)
    result = torch.empty(len(array), fit.channels, *fit.image_size, dtype=torch.uint8)
    for start in range(0, len(array), 1024):
        stop = min(start + 1024, len(array))
        result[start:stop] = fit.fit(array[start:stop])[0]
        if progress is not None:
            progress(stop, len(array))
    return result


def _open(wanted: Wanted, *, verify: bool) -> Packed:
    """The packed images of a file that is whole and of this data set; Unusable or OSError otherwise."""
    dataset, expected = wanted.dataset, wanted.expected
    pixels, about = pack_file.read(wanted.path, whole=verify)
    if {key: about.get(key) for key in expected} != expected:
        raise pack_file.Unusable("the data set, or the part of it that is used, has changed")
    broken = {int(index): reason for index, reason in about["broken"].items()}
    fit = from_dict(Preprocess, expected["fit"])
    images = pixels.view(-1, fit.channels, *fit.image_size)  # M C H W; or N, where broken images have rows, too
    sizes = torch.from_numpy(np.frombuffer(base64.b64decode(about["sizes"]), np.int32).reshape(-1, 2).copy())
    rows = None
    if broken and len(images) == len(dataset):
        rows = torch.tensor([index for index in range(len(dataset)) if index not in broken], dtype=torch.int64)
        sizes = sizes[rows]  # of all images, too
    return replace(_packed(dataset, images, sizes, fit, broken=broken, pixels=about["pixels"]), rows=rows)
