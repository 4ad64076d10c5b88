"""Packed or streamed: which of the two suits a data set and the disk, and why."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.cold import Progress
from vitrail.data.feeds.coming import Coming, ComingBatches
from vitrail.data.feeds.dense import dense_bytes
from vitrail.data.feeds.feed import Feed, ImageSet
from vitrail.data.feeds.pack_size import whole_of
from vitrail.data.feeds.packing import Packed, default_folder, pack, pack_path
from vitrail.data.feeds.streamed import Streamed, StreamedBatches
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.report import show

Wanted = Literal["auto", "packed", "streamed"]
MOST = 64 << 30  # bytes that are packed without being asked to
SHARE = 1 / 3  # of the free disk that is packed without being asked to
_WORTH_SAYING = 1 << 30  # bytes


class Choice(NamedTuple):
    """How images are fed, and a sentence that says why; None where there is nothing to say."""

    feed: Literal["packed", "streamed"]
    note: str | None


def choose(
    parts: Iterable[tuple[Dataset, Preprocess]], *, wanted: Wanted = "auto", folder: Path | None = None
) -> Choice:
    """Packed where that takes at most a third of the free disk and 64 GiB, streamed otherwise; `wanted` overrides.

    Images that are packed already, or are in memory, need no space.
    """
    folder = folder or default_folder()
    needed = sum(_bytes_to_write(dataset, fit, folder) for dataset, fit in parts)
    if wanted != "auto":
        return Choice(wanted, None)
    free = shutil.disk_usage(_existing(folder)).free
    size = f"{show(needed, 'bytes')} in {folder}, where {show(free, 'bytes')} are free"
    if needed <= min(MOST, SHARE * free):
        return Choice("packed", f"images are decoded once and packed: {size}" if needed > _WORTH_SAYING else None)
    limit = f"more than {show(MOST, 'bytes')}" if needed > MOST else "more than a third of it"
    return Choice(
        "streamed",
        f"images are streamed, decoded again in each epoch: packed, they would take {size} ({limit}). To "
        "pack them anyway: --set feed=packed; VITRAIL_CACHE names another folder",
    )


def open_images(
    dataset: Dataset,
    fit: Preprocess,
    *,
    feed: Wanted = "auto",
    tally: Tally | None = None,
    progress: Progress | None = None,
    whole: bool = False,
    beside: Sequence[tuple[Dataset, Preprocess]] = (),
) -> ImageSet:
    """The images of a data set, packed or streamed; arrays are never streamed, as they are in memory already.

    `beside` as of `pack`.
    """
    part = whole_of(dataset, whole=whole), fit
    if dataset.array is None and choose([part], wanted=feed).feed == "streamed":
        return Streamed(dataset, fit, tally=tally)
    return pack(dataset, fit, tally=tally, progress=progress, whole=whole, beside=beside)


def make_feed(data: ImageSet, **options: Any) -> Feed:
    """The feed of an image set; options as of `Feed`."""
    if isinstance(data, Packed):
        return Batches(data, **options)
    if isinstance(data, Coming):
        return ComingBatches(data, **options)
    if isinstance(data, Streamed):
        return StreamedBatches(data, **options)
    raise ConfigError(f"cannot make a feed of {type(data).__name__}; use Packed or Streamed images")


def _bytes_to_write(dataset: Dataset, fit: Preprocess, folder: Path) -> int:
    if (path := pack_path(dataset, fit, folder)) is None or path.exists():
        return 0
    pixels = fit.channels * fit.image_size[0] * fit.image_size[1]
    return len(dataset) * (pixels + dense_bytes(dataset.schema, fit.image_size))


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
