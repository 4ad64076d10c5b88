"""Dynamic batching over requests, and a limiter that admits no more work than can be done in time."""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.serve.config import ServeConfig
from vitrail.serve.cores import use_cores
from vitrail.serve.metrics import Metrics
from vitrail.serve.model import ServedModel
from vitrail.serve.turns import Turns
from vitrail.serve.upload_rate import UploadRate

_SMOOTHING = 0.2  # weight of the newest batch in the moving average of the rate
_BATCH_SECONDS = 0.05  # that a batch may take where it has more than one image of a request: others wait for its end
_UNDECODED = 0.75  # of the places: for images that are not decoded yet, beyond the first of each request
_LEAST_SHARE = 2  # images in a batch, however long they take


class Overloaded(Exception):
    """A limit is reached: which one, and after how many seconds to try again."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.reason, self.retry_after = reason, max(1, math.ceil(retry_after))


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The outputs of one image, with timings."""

    outputs: Mapping[str, Tensor]  # 1 ... each
    batch: int  # images in its batch
    queued: float  # seconds
    computing: float


@dataclass(eq=False)
class _Item:
    image: Tensor  # C H W uint8
    served: ServedModel
    owner: object
    future: "asyncio.Future[Computed]"
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Reservation:
    """The images and bytes that one request occupies; released when it is answered."""

    limiter: "Limiter"
    images: int = 0
    undecoded: int = 0  # of the images
    bytes: int = 0
    upload: UploadRate | None = None  # while its body arrives

    @property
    def undecoded_rest(self) -> int:
        """Images that are not decoded yet, beyond the first of them."""
        return max(0, self.undecoded - 1)

    def add_images(self, count: int) -> None:
        """Reserves room for images whose files have arrived, or raises Overloaded."""
        self.limiter.check(count)
        self.images += count
        self.undecoded += count
        self.limiter.images += count
        self.limiter.metrics.set("waiting_images", self.limiter.images)

    def add_bytes(self, count: int) -> None:
        """Reserves memory for a part of the body; the slowest upload is dropped when there is no room."""
        while self.limiter.bytes + count > self.limiter.config.max_memory:
            slowest = self.limiter.slowest()
            if slowest is None or slowest is self:
                raise Overloaded("memory", 1)
            slowest.drop()
        self.bytes += count
        self.limiter.bytes += count

    def drop(self) -> None:
        """Ends the upload and frees its bytes at once: another one needs the room."""
        assert self.upload is not None  # noqa: S101  (only uploads in progress are dropped)
        self.upload.drop()
        self.upload = None
        self.limiter.bytes -= self.bytes
        self.bytes = 0


class Limiter:
    """Counts the images and bytes in progress. Used from the event loop's thread only."""

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self.config, self.metrics = config, metrics
        self.images = self.bytes = 0
        self.rate = 0.0  # images per second, once known
        self._requests: set[Reservation] = set()

    @property
    def share(self) -> int:
        """Images in a batch, where there are fewer requests."""
        return max(_LEAST_SHARE, int(self.rate * _BATCH_SECONDS))

    def delay(self, count: int = 1) -> float:
        """How long a request with so many images would wait for others, in seconds; 0 while no rate is known.

        Requests take turns to be decoded and to be computed: of another request, no more images are ahead than this one
        has itself, or than a batch takes of it; and of those that are not decoded yet, one.
        """
        most = max(count, self.share)
        ahead = sum(min(most, one.images - one.undecoded_rest) for one in self._requests)
        return ahead / self.rate if self.rate else 0.0

    def check(self, count: int) -> None:
        """Raises Overloaded when so many more images would be too many, or would wait too long.

        Three quarters of the places are for images beyond the first of a request that are not decoded yet, and of
        those that are free there a request gets at most half. So a few requests with many images that take long leave
        room for others.
        """
        room = int(_UNDECODED * self.config.max_waiting) - sum(one.undecoded_rest for one in self._requests)
        if self.images and (self.images + count > self.config.max_waiting or count - 1 > max(0, room + 1) // 2):
            raise Overloaded("full", self.delay(count))
        if (delay := self.delay(count)) > self.config.max_delay:
            raise Overloaded("slow", delay - self.config.max_delay)

    def slowest(self) -> Reservation | None:
        """The upload in progress with the lowest rate, of those that hold memory."""
        uploads = [(one.upload.rate, one) for one in self._requests if one.upload is not None and one.bytes]
        return min(uploads, key=lambda pair: pair[0])[1] if uploads else None

    @contextlib.contextmanager
    def admit(self) -> Iterator[Reservation]:
        """A request whose body may be read, or Overloaded at once; its images count from when they have arrived."""
        self.check(1)
        reservation = Reservation(self)
        self._requests.add(reservation)
        try:
            yield reservation
        finally:
            self._requests.remove(reservation)
            self.images -= reservation.images
            self.bytes -= reservation.bytes
            self.metrics.set("waiting_images", self.images)


class Batcher:
    """A thread that takes up to `max_batch` queued images for one model and computes them together.

    It waits at most `batch_wait`, and only for images that are admitted and not decoded yet: a single request is
    computed at once, and while one batch is computed the next one fills up. Requests take turns: a batch has an image
    of each that waits, and more of them only as long as it takes no more than a twentieth of a second.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter, self._config, self._metrics = limiter, limiter.config, limiter.metrics
        self._queue: Turns[_Item] = Turns()
        self._wake, self._closed = threading.Condition(), False
        self._cores = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    async def compute(self, image: Tensor, served: ServedModel, *, owner: object) -> Computed:
        """The outputs of a uint8 image C H W of a request, resized and cropped to the size of the model."""
        future: asyncio.Future[Computed] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._queue.add(_Item(image, served, owner, future))
            self._wake.notify()
        return await future

    def close(self) -> None:
        """Computes what is queued, then stops the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        use_cores(self._cores)
        while batch := self._collect():
            start = time.monotonic()
            loop = batch[0].future.get_loop()
            try:
                outputs = batch[0].served.engine.outputs(torch.stack([item.image for item in batch]))  # B C H W
                finite = _finite_rows(outputs)
            except Exception as error:  # the thread must survive any error of an engine; the requests receive it
                deliver = functools.partial(_fail, batch, error)
            else:
                deliver = functools.partial(self._deliver, batch, outputs, finite, start, time.monotonic())
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for this
                loop.call_soon_threadsafe(deliver)
            del batch, deliver

    def _collect(self) -> list[_Item]:
        """The next images, all for the same model; empty only when the batcher is closed."""
        with self._wake:
            while True:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return []
                until = min(item.since for item in self._queue.heads()) + self._config.batch_wait
                while self._expects_more() and (left := until - time.monotonic()) > 0:
                    self._wake.wait(left)
                if batch := self._take():
                    return batch

    def _expects_more(self) -> bool:
        return not self._closed and len(self._queue) < min(self._config.max_batch, self._limiter.images)

    def _take(self) -> list[_Item]:
        batch: list[_Item] = []
        most = min(self._config.max_batch, max(self._limiter.share, self._queue.owners))
        while len(batch) < most:
            item = self._queue.take(lambda item: not batch or item.served is batch[0].served)
            if item is None:
                break
            batch.append(item)
        return batch

    def _deliver(
        self, batch: list[_Item], outputs: Mapping[str, Tensor], finite: list[bool], start: float, end: float
    ) -> None:
        rate = len(batch) / max(end - start, 1e-6)
        self._limiter.rate = rate + (1 - _SMOOTHING) * (self._limiter.rate - rate) if self._limiter.rate else rate
        self._metrics.add("images_total", amount=len(batch))
        self._metrics.observe("batch_size", len(batch))
        self._metrics.observe("compute_seconds", end - start)
        for index, item in enumerate(batch):
            self._metrics.observe("queue_seconds", start - item.since)
            if item.future.done():
                continue
            if finite[index]:
                own = {name: values[index : index + 1] for name, values in outputs.items()}
                timing = {"queued": start - item.since, "computing": end - start}
                item.future.set_result(Computed(outputs=own, batch=len(batch), **timing))
            else:
                item.future.set_exception(ValueError("the model computed numbers that are not finite"))


def _finite_rows(outputs: Mapping[str, Tensor]) -> list[bool]:
    """For each image, whether no output is NaN or infinite: an answer must not be made of those."""
    rows = [torch.isfinite(values).flatten(1).all(dim=1) for values in outputs.values()]  # B each
    return torch.stack(rows).all(dim=0).tolist()


def _fail(batch: list[_Item], error: Exception) -> None:
    for item in batch:
        if not item.future.done():
            item.future.set_exception(error)
