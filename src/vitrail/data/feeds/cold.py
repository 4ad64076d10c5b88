"""Cold packing: images are decoded once and written to their files, whatever the number of sizes and the order."""

import base64
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import to_dict
from vitrail.data.broken import Tally
from vitrail.data.dataset import Dataset, Retargeted, Subset
from vitrail.data.feeds import pack_file
from vitrail.data.feeds.decode_blocks import Block, decode_blocks, decode_to_files
from vitrail.data.feeds.decode_direct import Into
from vitrail.data.feeds.decode_worker import Also
from vitrail.data.preprocess import Preprocess
from vitrail.files import write_atomically
from vitrail.report import show

_BLOCK = 4 << 20  # bytes of pixels that are written and checked together

Progress = Callable[[int, int], None]  # images done, and of how many


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file of packed images that is to be built: all images of a data set, fitted in one way."""

    dataset: Dataset
    fit: Preprocess
    path: Path

    @cached_property
    def expected(self) -> dict[str, Any]:
        """What a file of these images says of itself."""
        return {
            "fingerprint": self.dataset.image_fingerprint, "fit": to_dict(self.fit), "count": len(self.dataset)
        }  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """The bytes of one image."""
        return self.fit.channels * prod(self.fit.image_size)


class Growing:
    """A file of packed images under construction: its rows, and what became of each image.

    Images that come in order, `ordered`, leave no rows for broken ones; in another order, such rows are zero.
    """

    def __init__(
        self, wanted: Wanted, rows: pack_file.Rows, numbers: Mapping[int, int] | None, *, ordered: bool
    ) -> None:
        self.wanted, self.rows, self._next = wanted, rows, 0 if ordered and numbers is None else None
        self._numbers = numbers  # the row of an image of the data set that is decoded; None: the same
        self.sizes = torch.zeros(len(wanted.dataset), 2, dtype=torch.int32)
        self.broken: dict[int, str] = {}

    @property
    def pixels(self) -> Tensor:
        """N C H W uint8; only rows that were written mean anything."""
        assert self.rows.pixels is not None  # noqa: S101  (no data set is empty)
        return self.rows.pixels.view(len(self.wanted.dataset), self.wanted.fit.channels, *self.wanted.fit.image_size)

    def take(self, block: Block, images: Tensor) -> None:
        """Writes the images of a block that belong here, unless they are written; of a broken one, zeros."""
        if block.written:
            self._note(block)
            return
        for row, answer in enumerate(block.answers):
            assert answer is not None  # noqa: S101  (blocks are whole)
            number = block.indices[row] if self._numbers is None else self._numbers.get(block.indices[row])
            if number is None:
                continue
            if isinstance(answer, str):
                self.broken[number] = answer
                images[row] = 0
            else:
                self.sizes[number] = torch.tensor(answer)
            if self._numbers is not None:
                self.rows.put(number, images[row : row + 1])
        if self._next is not None:
            good = [row for row in range(len(images)) if row not in block.broken]
            self.rows.put(self._next, images if len(good) == len(images) else images[good])
            self._next += len(good)
        elif self._numbers is None:
            for first, last in _runs(block.indices):
                self.rows.put(block.indices[first], images[first:last])

    def _note(self, block: Block) -> None:
        """Takes note of the images of a block that are written; rows of broken ones are zero in a new file."""
        of = self._numbers
        found = [
            (index if of is None else of.get(index), answer)
            for index, answer in zip(block.indices, block.answers, strict=True)
        ]
        good = {number: answer for number, answer in found if number is not None and isinstance(answer, tuple)}
        self.broken |= {number: answer for number, answer in found if number is not None and isinstance(answer, str)}
        if good:
            self.sizes[list(good)] = torch.tensor(list(good.values()), dtype=torch.int32)
        self.rows.written(number for number, _ in found if number is not None)

    def finish(self) -> None:
        """Writes what describes and checks the images."""
        kept = (
            self.sizes if self._next is None else self.sizes[[at not in self.broken for at in range(len(self.sizes))]]
        )
        sizes = base64.b64encode(kept.numpy().tobytes()).decode()
        broken = dict(sorted(self.broken.items()))
        self.rows.finish(len(kept), self.wanted.expected | {"broken": broken, "sizes": sizes})


def build(
    wanted: Wanted,
    beside: Sequence[Wanted] = (),
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    tally: Tally,
    order: Sequence[int] | None = None,
    processes: bool | None = None,
    began: Callable[[Sequence[Growing]], None] = lambda _: None,
    arrived: Callable[[Block], None] = lambda _: None,
) -> None:
    """Decodes the images of a data set into its file, those of `beside` (parts of it) into theirs at the same time.

    `order` lists all images as they are needed first. `began` gets the files, `arrived` every block that was written.
    """
    parts = [wanted, *beside]
    needed = sum(len(part.dataset) * part.row_bytes for part in parts)
    if needed > (free := shutil.disk_usage(wanted.path.parent).free):
        raise OSError(None, f"only {show(free, 'bytes')} are free")
    numbers = [None, *(rows_in(wanted.dataset, part.dataset) for part in beside)]
    also = [Also(part.fit, frozenset(of or ())) for part, of in zip(beside, numbers[1:], strict=True)]

    def fill(files: Sequence[Growing]) -> None:
        began(files)
        done, total = 0, len(wanted.dataset)
        size = max(1, _BLOCK // wanted.row_bytes)
        blocks = None
        if order is not None and processes:
            into = [
                (Into(part.fit, of), file.rows.descriptor) for part, of, file in zip(parts, numbers, files, strict=True)
            ]
            blocks = decode_to_files(wanted.dataset, order, into, workers=workers)
        if blocks is None:
            blocks = decode_blocks(
                wanted.dataset, wanted.fit, workers=workers, size=size, order=order, more=also, processes=processes
            )
        for block in blocks:
            tally.add((wanted.dataset.where(block.indices[row]), why) for row, why in block.broken.items())
            for file, images in zip(files, [block.images, *block.more], strict=True):
                file.take(block, images)
            arrived(block)
            done += len(block.answers)
            if progress is not None:
                progress(done, total)

    _opened(list(zip(parts, numbers, strict=True)), fill, [], ordered=order is None)


def _opened(
    parts: Sequence[tuple[Wanted, Mapping[int, int] | None]],
    fill: Callable[[Sequence[Growing]], None],
    files: list[Growing],
    *,
    ordered: bool,
) -> None:
    """Opens one file after the other, fills all, and puts all in place; on an error, none."""
    if len(files) == len(parts):
        fill(files)
        return
    wanted, numbers = parts[len(files)]

    def write(new: Path) -> None:
        together = max(1, _BLOCK // wanted.row_bytes)
        rows = pack_file.Rows(new, rows=len(wanted.dataset), size=wanted.row_bytes, together=together)
        try:
            growing = Growing(wanted, rows, numbers, ordered=ordered)
            _opened(parts, fill, [*files, growing], ordered=ordered)
            growing.finish()
        finally:
            rows.close()

    write_atomically(wanted.path, write)


def rows_in(whole: Dataset, part: Dataset) -> dict[int, int] | None:
    """The row of a part's image by its number in the whole; None where not all of them are images of the whole."""
    (source, numbers), (same, wanted) = _source(whole), _source(part)
    if source is not same:
        return None
    at = {number: index for index, number in enumerate(numbers)}
    if len(set(wanted)) < len(wanted) or not all(number in at for number in wanted):
        return None
    return {at[number]: row for row, number in enumerate(wanted)}


def _source(dataset: Dataset) -> tuple[Dataset, Sequence[int]]:
    """The data set that reads the images, and the numbers that they have there."""
    if isinstance(dataset, Retargeted):
        return _source(dataset.whole)
    if isinstance(dataset, Subset):
        source, numbers = _source(dataset.whole)
        return source, [numbers[index] for index in dataset.indices]
    return dataset, range(len(dataset))


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Where runs of numbers that follow each other begin and end."""
    ends = [at for at in range(1, len(indices)) if indices[at] != indices[at - 1] + 1]
    return list(zip([0, *ends], [*ends, len(indices)], strict=True))
