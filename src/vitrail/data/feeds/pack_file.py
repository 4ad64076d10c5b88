"""The file of packed images: pixels first, so that they can be mapped; then a JSON that describes and checks them.

    N C H W uint8 | JSON: format, about, blocks [bytes, crc32] | its sha256, 32 bytes | its length, 8 | magic, 8

A reader finds all of it or nothing.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitrail.errors import DataError
from vitrail.files import open_regular, write_atomically
from vitrail.strict_json import to_json

FORMAT = 1
MAGIC = b"VITRAIL\n"
_TAIL = struct.Struct("<32sQ8s")
_READ = 4 << 20  # bytes that are read at a time
_CHECKERS = max(2, min(8, (os.cpu_count() or 2) // 2))  # threads: with rows in random order, most blocks end last
_SPOT_CHECK = 128 << 20  # bytes that `read` checks by itself: a tenth of a second


class Unusable(DataError):
    """A file of packed images that is damaged, or of other images; the message says which."""


def write(path: Path, blocks: Iterable[Tensor], about: Callable[[], Mapping[str, Any]]) -> None:
    """Writes blocks of images, N C H W uint8 each, then what `about` returns after the last of them."""
    write_atomically(path, lambda new: _write(new, blocks, about))


def _write(path: Path, blocks: Iterable[Tensor], about: Callable[[], Mapping[str, Any]]) -> None:
    with path.open("wb") as file:
        checks = []
        for block in blocks:
            # Written, not mapped: a full disk is an error here, and a crash of the process in a mapped file.
            data = block.contiguous().numpy().data.cast("B")
            file.write(data)
            checks.append([data.nbytes, zlib.crc32(data)])
        _close(file, checks, about())


def _close(file: IO[bytes], checks: Sequence[Sequence[int]], about: Mapping[str, Any]) -> None:
    footer = to_json({"format": FORMAT, "about": about, "blocks": checks}, ascii_only=True).encode()
    file.write(footer + _TAIL.pack(hashlib.sha256(footer).digest(), len(footer), MAGIC))


class Rows:
    """The pixels of a file under construction: images of one size, each written to its row, in any order.

    `pixels` are mapped, so that rows that were written can be read before the file is complete. Checksums are computed
    by threads as soon as all rows of a block are there.
    """

    def __init__(self, path: Path, *, rows: int, size: int, together: int) -> None:
        with path.open("wb") as new:
            os.ftruncate(new.fileno(), rows * size)
        self._file = path.open("r+b", buffering=0)
        self._size, self._together = size, max(1, together)
        self._missing = [min(self._together, rows - first) for first in range(0, rows, self._together)]
        self._checks: dict[int, Future[int]] = {}
        self._threads = ThreadPoolExecutor(_CHECKERS, "checksum")
        self.pixels = torch.from_file(str(path), shared=True, size=rows * size, dtype=torch.uint8) if rows else None

    def put(self, row: int, images: Tensor) -> None:
        """Writes images that follow each other, M C H W uint8, from a row on."""
        if not len(images):
            return
        data = images.contiguous().numpy().data.cast("B")
        at = row * self._size
        while data:
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written
        self.written(range(row, row + len(images)))

    @property
    def descriptor(self) -> int:
        """The file, for other processes that write rows."""
        return self._file.fileno()

    def written(self, rows: Iterable[int]) -> None:
        """Takes note of rows that are in the file."""
        for row in rows:
            block = row // self._together
            self._missing[block] -= 1
            if not self._missing[block]:
                self._checks[block] = self._threads.submit(self._check, block)

    def finish(self, rows: int, about: Mapping[str, Any]) -> None:
        """Ends the file after so many rows, with its description; rows that were never written are zero."""
        os.ftruncate(self._file.fileno(), rows * self._size)
        blocks = range(-(-rows // self._together))
        whole = {block: self._checks.get(block) for block in blocks}
        if blocks and rows % self._together:
            whole[blocks[-1]] = None  # it may have been cut off
        found = {block: one or self._threads.submit(self._check, block) for block, one in whole.items()}
        sizes = [self._size * min(self._together, rows - block * self._together) for block in blocks]
        checks = [[size, found[block].result()] for block, size in zip(blocks, sizes, strict=True)]
        self._file.seek(0, os.SEEK_END)
        _close(self._file, checks, about)

    def close(self) -> None:
        """Ends the threads, and closes the file as it is."""
        self._threads.shutdown(cancel_futures=True)
        self._file.close()

    def _check(self, block: int) -> int:
        first, checksum = block * self._together * self._size, 0
        for start in range(first, first + self._together * self._size, _READ):
            count = min(_READ, first + self._together * self._size - start)
            checksum = zlib.crc32(os.pread(self._file.fileno(), count, start), checksum)
        return checksum


def read(path: Path, *, whole: bool = False) -> tuple[Tensor, Mapping[str, Any]]:
    """The pixels as one flat mapped tensor, and the description that was written; Unusable where anything is wrong.

    Sizes and the description are always checked, the pixels in a sample of blocks, or in all where `whole` is true.
    "pixels" is a checksum of all pixels, made of those of the blocks.
    """
    with open_regular(path) as file:
        footer = _footer(file, path.stat().st_size)
        blocks: list[list[int]] = footer["blocks"]
        _check_blocks(file, blocks, whole=whole)
    about = footer["about"] | {"pixels": hashlib.sha256(to_json(blocks, ascii_only=True).encode()).hexdigest()}
    total = sum(size for size, _ in blocks)
    if total == 0:
        return torch.empty(0, dtype=torch.uint8), about
    try:
        return torch.from_file(str(path), shared=False, size=total, dtype=torch.uint8), about
    except RuntimeError as error:  # of the system, as it was just read
        raise DataError(f"{path} cannot be mapped: {str(error).splitlines()[0]}; try again") from error


def _footer(file: IO[bytes], size: int) -> dict[str, Any]:
    if size < _TAIL.size:
        raise Unusable(f"it has {size} bytes, too few for a file of packed images")
    file.seek(size - _TAIL.size)
    checksum, length, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != MAGIC or length > size - _TAIL.size:
        raise Unusable("its end is missing, or it is not a file of packed images")
    file.seek(size - _TAIL.size - length)
    text = file.read(length)
    if hashlib.sha256(text).digest() != checksum:
        raise Unusable("its description is damaged")
    footer: dict[str, Any] = json.loads(text)
    if footer["format"] != FORMAT:
        raise Unusable(f"it has format {footer['format']}; this version reads format {FORMAT}")
    expected = sum(block for block, _ in footer["blocks"]) + length + _TAIL.size
    if expected != size:
        raise Unusable(f"it has {size:,} bytes; expected {expected:,}")
    return footer


def _check_blocks(file: IO[bytes], blocks: list[list[int]], *, whole: bool) -> None:
    largest = max((size for size, _ in blocks), default=1)
    step = 1 if whole else max(1, -(-len(blocks) * largest // _SPOT_CHECK))
    start = 0
    for index, (size, checksum) in enumerate(blocks):
        if index % step == 0 or index == len(blocks) - 1:
            file.seek(start)
            if zlib.crc32(file.read(size)) != checksum:
                raise Unusable(f"bytes {start:,} to {start + size:,} are damaged")
        start += size
