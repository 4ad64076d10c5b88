"""What training and evaluation know of their images: an image set, and the feed that gives out its batches."""

import hashlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.broken import Skipped
from vitrail.data.dataset import Batch, Targets
from vitrail.data.feeds.sampler import balanced_order, strata_of
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError

AHEAD = 3  # batches that are ready while one is worked on


class ImageSet(ABC):
    """The images of a data set at one stored size, uint8: packed into a file, or streamed."""

    name: str
    schema: Schema
    targets: Targets  # M ... by field
    ids: Tensor  # int64: the numbers in the data set of the images that can be read, as far as this is known
    stored: Preprocess  # how images are fitted into the stored size

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def numbers(self) -> int:
        """One more than the largest number of a sample."""
        return int(self.ids.max()) + 1

    @property
    @abstractmethod
    def skipped(self) -> Skipped:
        """The images that could not be read so far, and why."""

    @abstractmethod
    def aspects(self, device: torch.device | str = "cpu") -> Tensor | None:
        """By the sample's number: how much wider an image was than it is stored; None where shapes were kept."""

    @abstractmethod
    def checksum(self) -> str:
        """Tells these images and targets from others."""

    def prepare(self, preprocess: Preprocess) -> Callable[[Tensor], Tensor]:
        """What makes a model's input of the stored images: all of its preprocessing, or what is left of it."""
        return preprocess.normalise if geometry(self.stored) == geometry(preprocess) else preprocess


def geometry(preprocess: Preprocess) -> Preprocess:
    """The part of preprocessing that moves pixels, without normalisation: what stored images are told apart by."""
    return replace(preprocess, mean=(0.5,), std=(0.5,), channel_order="rgb")


def aspect_of(sizes: Tensor, stored: tuple[int, int]) -> Tensor:
    """How much wider images of these heights and widths are than they are stored: M 2 -> M."""
    height, width = stored
    return (sizes[:, 1] / sizes[:, 0]) / (width / height)


def moved(schema: Schema, targets: Targets, stored: Preprocess, sizes: Tensor) -> dict[str, Tensor]:
    """Targets M ..., moved as the pixels of their images, of these heights and widths M 2, were when they were fitted.

    Those with a value for each pixel are read and moved elsewhere, and are left out.
    """
    maps = stored.maps(sizes).view(-1, 2, 3)
    return {
        name: target.move(targets[name], maps, stored.image_size)
        for name, target in schema.items()
        if target.dense is None
    }


class _Ready(NamedTuple):
    batch: Batch
    copied: torch.cuda.Event | None  # set when the copy to the device has been made


class Feed(ABC):
    """The batches of one process; `batch_size` counts the images of a step over all `world` processes.

    The order of an epoch follows from (seed, epoch) alone. Batch k of an epoch holds the same images for any `world`:
    each rank gets a run of it, cut between pairs (2j, 2j+1), as these may be mixed with each other. Without
    `drop_last` the last batch is smaller, and a rank's part of it may be empty, so that all ranks take the same number
    of steps. `waited` counts the seconds that the user of the batches had to wait for them, over all epochs.

    `balance` is the power of balanced sampling (`vitrail.data.feeds.sampler`). An image that comes again in an epoch
    has `data.numbers` added to its id each time, so that it is augmented in another way.
    """

    def __init__(
        self,
        data: ImageSet,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        device: torch.device | str,
        rank: int = 0,
        world: int = 1,
        drop_last: bool = False,
        balance: float | None = None,
    ) -> None:
        self.data, self.batch_size, self.seed, self.shuffle = data, batch_size, seed, shuffle
        self.device, self.rank, self.world, self.drop_last = _numbered(torch.device(device)), rank, world, drop_last
        self.waited = 0.0
        self._check()
        self._balance = balance
        self._strata = None if balance is None else strata_of(data.schema, data.targets)

    def _check(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be 1 or more")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank is {self.rank} and world {self.world}; rank must be from 0 to world - 1")
        if self.drop_last and len(self.data) < self.batch_size:
            raise ConfigError(
                f"{self.data.name} has {len(self.data)} images, which is less than one batch of {self.batch_size}; "
                f"choose a batch_size of {len(self.data)} or less"
            )
        step = 2 * self.world
        if self.drop_last and self.world > 1 and self.batch_size % step:
            fits = max(step, round(self.batch_size / step) * step)
            raise ConfigError(
                f"batch_size {self.batch_size} is not divisible by {step}, as mixed pairs of images on {self.world} "
                f"processes need; the nearest that is: {fits}"
            )

    def __len__(self) -> int:
        """Batches per epoch, the same on all ranks."""
        count = len(self.data)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def order(self, epoch: int) -> Tensor:
        """The positions M of all images in the order of an epoch, the same on all ranks.

        With balanced sampling, M is added to a position each time that it comes again.
        """
        if not self.shuffle:
            return torch.arange(len(self.data))
        digest = hashlib.sha256(f"order {self.seed} {epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        if self._balance is not None and self._strata is not None:
            return balanced_order(self._strata, self._balance, generator)
        return torch.randperm(len(self.data), generator=generator)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The rank's part of the batches `start`, `start` + 1, ... of an epoch."""
        if not 0 <= start <= len(self):
            raise ConfigError(f"start is {start}; an epoch has {len(self)} batches, so it must be 0 to {len(self)}")
        order, spans = self.order(epoch), [self._span(number) for number in range(start, len(self))]
        if self._balance is None:
            return self._batches(order, spans)
        repeats = order // len(self.data) * self.data.numbers  # M
        added = [repeats[span.start : span.stop] for span in spans]
        return self._renumbered(self._batches(order % len(self.data), spans), added)

    @staticmethod
    def _renumbered(batches: Iterator[Batch], repeats: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches whose ids tell the times apart that an image comes in an epoch."""
        for batch, added in zip(batches, repeats, strict=True):
            yield batch._replace(ids=batch.ids + added.to(batch.ids.device, non_blocking=True))

    def _span(self, number: int) -> range:
        """Where this rank's part of a batch lies in the order of an epoch."""
        first = number * self.batch_size
        count = min(self.batch_size, len(self.data) - first)
        pairs = -(-count // 2)
        start, stop = (2 * (pairs * rank // self.world) for rank in (self.rank, self.rank + 1))
        return range(first + start, first + min(stop, count))

    @abstractmethod
    def _batches(self, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        """The batches of some parts of an order, on the device."""

    def _ahead(self, made: Generator[Batch | None, None, None]) -> Iterator[Batch]:
        """The same batches, made and copied to the device by a thread while earlier ones are worked on.

        None stands for "not yet": the thread then looks whether it is still needed.
        """
        ready: queue.Queue[_Ready | BaseException | None] = queue.Queue(AHEAD)
        stop = threading.Event()
        thread = threading.Thread(target=self._copy, args=(made, ready.put, stop), name="batches", daemon=True)
        thread.start()
        try:
            while True:
                began = time.perf_counter()
                item = ready.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                if item.copied is not None:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(item.copied)
                    for tensor in item.batch.tensors():
                        tensor.record_stream(current)  # their memory was taken on the stream of copies
                self.waited += time.perf_counter() - began
                yield item.batch
        finally:
            stop.set()
            while thread.is_alive():  # it may wait for room in the queue
                try:
                    ready.get(timeout=0.01)
                except queue.Empty:
                    continue
            thread.join()

    def _copy(
        self,
        made: Generator[Batch | None, None, None],
        put: Callable[[_Ready | BaseException | None], None],
        stop: threading.Event,
    ) -> None:
        try:
            stream = None
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # each thread has its own, and pinned memory belongs to it
                stream = torch.cuda.Stream(self.device)
            with nullcontext() if stream is None else torch.cuda.stream(stream), closing(made):
                for batch in made:
                    if stop.is_set():
                        return
                    if batch is not None:
                        moved = [tensor.to(self.device, non_blocking=True) for tensor in batch.tensors()]
                        put(_Ready(batch.with_tensors(moved), None if stream is None else stream.record_event()))
            put(None)
        except BaseException as error:  # raised again where the batch is awaited
            put(error)


def _numbered(device: torch.device) -> torch.device:
    """The device with its number: "cuda" alone would be another one in another thread."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device
