"""Batches on the device, in an order that (seed, epoch) alone decides: not workers, restarts or machines."""

import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.cache import Packed
from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError

RESIDENT = 0.2  # of the free memory: a set that needs less is kept on the device as a whole
_AHEAD = 3  # batches that are prepared while one is worked on


class _Ready(NamedTuple):
    batch: Batch
    copied: torch.cuda.Event | None  # set when the copy to the device has been made


class Batches:
    """The batches of one process; `batch_size` counts the images of a step over all `world` processes.

    Batch k of an epoch holds the same images for any `world`: each rank gets a run of it, cut between pairs (2j,
    2j+1), as these may be mixed with each other. Without `drop_last` the last batch is smaller, and a rank's part of
    it may be empty, so that all ranks take the same number of steps. `waited` counts the seconds that the user of
    the batches had to wait for them, over all epochs.
    """

    def __init__(
        self,
        packed: Packed,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        device: torch.device | str,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.packed, self.batch_size, self.seed, self.shuffle = packed, batch_size, seed, shuffle
        self.device, self.rank, self.world, self.drop_last = _numbered(torch.device(device)), rank, world, drop_last
        self.waited = 0.0
        self._check()
        images, rows = packed.images, torch.arange(len(packed)) if packed.rows is None else packed.rows
        # A small part of many images is no reason to fill a device with all of them.
        alone = self.device.type != "cpu" and 2 * len(rows) < len(images)
        needed = _bytes(images[:1]) * (len(rows) if alone else len(images))
        self.resident = needed < RESIDENT * _free_memory(self.device)
        if alone and self.resident:
            images, rows = images[rows], torch.arange(len(packed))
        place = self.device if self.resident else torch.device("cpu")
        self._images, self._rows = images.to(place), rows.to(place)
        self._labels, self._ids = packed.labels.to(place), packed.ids.to(place)

    def _check(self) -> None:
        if self.batch_size < 1 or not 0 <= self.rank < self.world:
            raise ConfigError(
                f"batch_size is {self.batch_size}, rank {self.rank}, world {self.world}; batch_size must be 1 or "
                f"more, and rank from 0 to world - 1"
            )
        if self.drop_last and len(self.packed) < self.batch_size:
            raise ConfigError(
                f"{self.packed.name} has {len(self.packed)} images, which is less than one batch of "
                f"{self.batch_size}; choose a batch_size of {len(self.packed)} or less"
            )
        step = 2 * self.world
        if self.drop_last and self.world > 1 and self.batch_size % step:
            fits = max(step, round(self.batch_size / step) * step)
            raise ConfigError(
                f"a batch_size of {self.batch_size} does not divide into pairs for {self.world} processes; the "
                f"nearest that does is {fits}"
            )

    def __len__(self) -> int:
        """Batches per epoch, the same on all ranks."""
        count = len(self.packed)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def order(self, epoch: int) -> Tensor:
        """The places M of all images in the order of an epoch, the same on all ranks."""
        if not self.shuffle:
            return torch.arange(len(self.packed))
        digest = hashlib.sha256(f"order {self.seed} {epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return torch.randperm(len(self.packed), generator=generator)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The rank's part of the batches `start`, `start` + 1, ... of an epoch."""
        if not 0 <= start <= len(self):
            raise ConfigError(f"an epoch has {len(self)} batches; it cannot be taken up after {start}")
        order = self.order(epoch)
        parts = [self._part(order, number) for number in range(start, len(self))]
        return self._at_once(parts) if self.resident else self._ahead(parts)

    def _part(self, order: Tensor, number: int) -> Tensor:
        """The places of this rank's images in a batch."""
        whole = order[number * self.batch_size : (number + 1) * self.batch_size]
        pairs = -(-len(whole) // 2)
        first, last = pairs * self.rank // self.world, pairs * (self.rank + 1) // self.world
        return whole[2 * first : 2 * last]

    def _at_once(self, parts: list[Tensor]) -> Iterator[Batch]:
        for part in parts:
            began = time.perf_counter()
            places = part.to(self.device, non_blocking=True)
            batch = Batch(self._images[self._rows[places]], self._labels[places], self._ids[places])
            self.waited += time.perf_counter() - began
            yield batch

    def _ahead(self, parts: list[Tensor]) -> Iterator[Batch]:
        """Batches that a thread collects while earlier ones are worked on."""
        ready: queue.Queue[_Ready | BaseException] = queue.Queue(_AHEAD)
        stop = threading.Event()
        collect = threading.Thread(target=self._collect, args=(parts, ready.put, stop), name="batches", daemon=True)
        collect.start()
        try:
            for _ in parts:
                began = time.perf_counter()
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                if item.copied is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(item.copied)
                    for tensor in item.batch:
                        tensor.record_stream(current)  # their memory was taken on the stream of copies
                self.waited += time.perf_counter() - began
                yield item.batch
        finally:
            stop.set()
            while collect.is_alive():  # it may stand before a full queue
                try:
                    ready.get(timeout=0.01)
                except queue.Empty:
                    continue
            collect.join()

    def _collect(
        self, parts: list[Tensor], put: Callable[[_Ready | BaseException], None], stop: threading.Event
    ) -> None:
        try:
            stream = None
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # each thread has its own, and pinned memory belongs to it
                stream = torch.cuda.Stream(self.device)
            for part in parts:
                if stop.is_set():
                    return
                put(self._copied(part, stream))
        except BaseException as error:  # raised again where the batch is awaited
            put(error)

    def _copied(self, part: Tensor, stream: torch.cuda.Stream | None) -> _Ready:
        sources = ((self._images, self._rows[part]), (self._labels, part), (self._ids, part))
        if stream is None:
            images, labels, ids = (source[places].to(self.device) for source, places in sources)
            return _Ready(Batch(images, labels, ids), None)
        pinned = [_pinned(source, places) for source, places in sources]
        with torch.cuda.stream(stream):
            images, labels, ids = (tensor.to(self.device, non_blocking=True) for tensor in pinned)
            return _Ready(Batch(images, labels, ids), stream.record_event())


def _numbered(device: torch.device) -> torch.device:
    """The device with its number: "cuda" alone would be another one in another thread."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _pinned(source: Tensor, places: Tensor) -> Tensor:
    """Rows of a tensor in memory that a GPU copies from by itself."""
    rows = torch.empty(len(places), *source.shape[1:], dtype=source.dtype, pin_memory=True)
    return torch.index_select(source, 0, places, out=rows)


def _bytes(images: Tensor) -> int:
    return images.numel() * images.element_size()


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # Elsewhere images share the machine's memory; pages of mapped files count as free, as they can be dropped.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
