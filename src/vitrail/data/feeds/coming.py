"""Images that are being packed while a run already trains on them.

Processes decode in the order of the first epoch, and batches wait for their rows alone. Order, batches and bits are
those of packed images. If an image turns out to be broken, the order of every epoch changes: then the run begins again,
on the packed images, as it would have with them.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.data.broken import Skipped, Tally
from vitrail.data.dataset import Batch, Dataset, Retargeted
from vitrail.data.feeds.batches import Batches
from vitrail.data.feeds.cold import Growing, Wanted, build, rows_in
from vitrail.data.feeds.decode_blocks import Block
from vitrail.data.feeds.feed import Feed, ImageSet, aspect_of, moved
from vitrail.data.feeds.packing import Packed, building, is_packed, not_written

_LOOK = 0.1  # seconds between looks whether batches are still wanted


class Rewind(Exception):
    """An image that cannot be read was found after the first step: the run has to begin again without it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Files that are built at once: one decoding of the images of the first."""

    wanted: Wanted
    beside: Sequence[Wanted] = ()
    order: Sequence[int] | None = None  # the images of the first file, those that are needed first at the beginning


class Filling:
    """The thread that builds files of packed images, one job after the other; rows can be awaited.

    It ends with the program; a file that was not complete is removed by the next run.
    """

    def __init__(self, tally: Tally, *, workers: int | None = None) -> None:
        self._tally, self._workers = tally, workers
        self._news = threading.Condition()
        self._files: dict[str, Growing] = {}
        self._ready: dict[str, Tensor] = {}
        self._error: BaseException | None = None
        self.broken, self.over = False, False
        self.seconds, self.first = 0.0, 0.0  # until all images, and until the first
        self._thread = threading.Thread(target=self._run, name="packing", daemon=True)

    def start(self, jobs: Sequence[Job]) -> None:
        """Begins to work."""
        self._jobs = jobs
        self._thread.start()

    def ready(self, wanted: Wanted, rows: Tensor, timeout: float) -> Growing | None:
        """The file, if rows M of it are written within a time; Rewind or the error of the thread if they never will."""
        end = time.monotonic() + timeout
        with self._news:
            while True:
                if self._error is not None:
                    raise self._error
                if self.broken:
                    raise Rewind
                done = self._ready.get(str(wanted.path))
                if done is not None and bool(done[rows].all()):
                    return self._files[str(wanted.path)]
                if (left := end - time.monotonic()) <= 0 or self.over:
                    return None
                self._news.wait(left)

    def sentence(self) -> str:
        """How long it took, once it is over."""
        first = f"; the first was there after {self.first:.1f} s" if self.first else ""
        return f"images were decoded and packed beside training, in {self.seconds:.1f} s{first}"

    def wait(self) -> None:
        """Returns when all files are complete; raises what ended the thread, but not Rewind."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        self._began = began = time.perf_counter()
        try:
            for job in self._jobs:
                self._build(job)
        except BaseException as error:  # raised again where rows are awaited
            self._error = error
        with self._news:
            self.over, self.seconds = True, time.perf_counter() - began
            self._news.notify_all()

    def _build(self, job: Job) -> None:
        files = [job.wanted, *job.beside]
        numbers = [None, *(rows_in(job.wanted.dataset, one.dataset) for one in job.beside)]

        def note(growing: Sequence[Growing]) -> None:
            with self._news:
                for one, file in zip(files, growing, strict=True):
                    self._files[str(one.path)] = file
                    self._ready[str(one.path)] = torch.zeros(len(one.dataset), dtype=torch.bool)

        def arrived(block: Block) -> None:
            with self._news:
                self.broken = self.broken or bool(block.broken)
                self.first = self.first or time.perf_counter() - self._began
                for one, of in zip(files, numbers, strict=True):
                    rows = block.indices if of is None else [of[index] for index in block.indices if index in of]
                    self._ready[str(one.path)][list(rows)] = True
                self._news.notify_all()

        try:
            with building(files):
                if all(map(is_packed, files)):  # another process has built them meanwhile
                    return
                build(
                    job.wanted, job.beside, workers=self._workers, tally=self._tally, order=job.order, processes=True,
                    began=note, arrived=arrived,
                )  # fmt: skip
        except OSError as error:
            needed = sum(len(one.dataset) * one.row_bytes for one in files)
            raise not_written(job.wanted.path, error, needed) from error


class Coming(ImageSet):
    """The images of a data set while they are being packed; `packed` waits until they are."""

    def __init__(self, dataset: Dataset, wanted: Wanted, filling: Filling, opened: Callable[[], ImageSet]) -> None:
        rows = rows_in(wanted.dataset, images_of(dataset))
        assert rows is not None  # noqa: S101  (what is built was chosen for this data set)
        self.dataset, self.wanted, self.filling, self._opened = dataset, wanted, filling, opened
        self.name, self.schema, self.targets = dataset.name, dataset.schema, dataset.targets
        self.ids, self.stored = torch.arange(len(dataset)), wanted.fit
        self.rows = torch.tensor(sorted(rows, key=rows.__getitem__))  # M: in the file
        self._packed: Packed | None = None
        self._aspects: Tensor | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def skipped(self) -> Skipped:
        """None: with a broken image, the run begins again."""
        return ()

    def aspects(self, device: torch.device | str = "cpu") -> Tensor | None:
        """As of packed images; the values of a sample are filled in before the batch with it is given out."""
        if self.stored.resize == "squash" and self._aspects is None:
            self._aspects = torch.ones(len(self), device=device)
        return self._aspects

    def checksum(self) -> str:
        """That of the packed images: waits for them."""
        return self.packed().checksum()

    @property
    def done(self) -> bool:
        """Whether all images are packed."""
        return self._packed is not None or self.filling.over

    def packed(self) -> Packed:
        """The packed images, after a wait for the last one; Rewind where some cannot be read."""
        if self._packed is None:
            self.filling.wait()
            found = self._opened()
            assert isinstance(found, Packed)  # noqa: S101  (its file was just built)
            if len(found) < len(self):
                raise Rewind
            self._packed = found
            if self._aspects is not None and (whole := found.aspects()) is not None:
                self._aspects.copy_(whole)
        return self._packed

    def batch(self, at: Tensor, timeout: float, *, pinned: bool) -> Batch | None:
        """The batch of some positions B, if its images are there within a time."""
        if self.done:
            whole = self.packed()
            pixels, rows, sizes = whole.images, self.rows[at], whole.sizes[at]
        elif (file := self.filling.ready(self.wanted, self.rows[at], timeout)) is not None:
            pixels, rows, sizes = file.pixels, self.rows[at], file.sizes[self.rows[at]]
        else:
            return None
        images = torch.empty(len(at), *pixels.shape[1:], dtype=torch.uint8, pin_memory=pinned)
        torch.index_select(pixels, 0, rows, out=images)
        if self._aspects is not None:
            values = aspect_of(sizes, self.stored.image_size).to(self._aspects.device)
            self._aspects[at.to(self._aspects.device)] = values
        targets = {name: values[at] for name, values in self.targets.items()}
        return Batch(images, moved(self.schema, targets, self.stored, sizes), at)


class ComingBatches(Feed):
    """The feed of images that are being packed; that of packed images as soon as they are. See `Feed`."""

    data: Coming

    def __init__(self, data: Coming, **options: Any) -> None:
        super().__init__(data, **options)
        self._options = options
        self._settled: Batches | None = None

    def _batches(self, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        if self._settled is None and self.data.done:
            self._settled = Batches(self.data.packed(), **self._options)
        if self._settled is None:
            return self._ahead(self._growing(order, spans))
        return self._after(self._settled, order, spans)

    def _after(self, feed: Batches, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        waited = feed.waited
        for batch in feed._batches(order, spans):
            self.waited, waited = self.waited + feed.waited - waited, feed.waited
            yield batch

    def _growing(self, order: Tensor, spans: Sequence[range]) -> Generator[Batch | None, None, None]:
        pinned = self.device.type == "cuda"
        for span in spans:
            at = order[span.start : span.stop]
            while (batch := self.data.batch(at, _LOOK, pinned=pinned)) is None:
                yield None
            yield batch


def images_of(dataset: Dataset) -> Dataset:
    """The data set that other targets were put on."""
    while isinstance(dataset, Retargeted):
        dataset = dataset.whole
    return dataset


def first_order(data: Coming, **options: Any) -> list[int]:
    """The images of a file as they are needed first: those of a data set in the order of its first epoch, then all.

    Options as of `Feed`.
    """
    order = ComingBatches(data, batch_size=1, shuffle=True, device="cpu", **options).order(0) % len(data)
    first = data.rows[order].tolist()
    return list(dict.fromkeys([*first, *range(len(data.wanted.dataset))]))
