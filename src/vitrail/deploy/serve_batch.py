"""Pictures of many requests computed together, and a gate that lets in no more than can be answered in time."""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_metrics import Metrics
from vitrail.deploy.serve_model import Served

_MEMORY = 0.2  # share of the newest batch in the mean rate


class Busy(Exception):
    """The service has too much to do: which limit is reached, and when to come again."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.why, self.seconds = why, max(1, math.ceil(seconds))


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What became of one picture."""

    logits: Tensor  # K
    batch: int  # pictures computed with it, itself included
    queued: float  # seconds
    computing: float


@dataclass(eq=False)
class _Waiting:
    image: Tensor  # C H W uint8
    served: Served
    answer: "asyncio.Future[Computed]"
    since: float = field(default_factory=time.monotonic)


class Ticket:
    """What one request holds of the service's room; given back when it is answered."""

    def __init__(self, gate: "Gate") -> None:
        self._gate, self.images, self.bytes = gate, 0, 0

    def take_images(self, count: int) -> None:
        """Room for so many pictures, or Busy."""
        self._gate.check(count)
        self.images += count
        self._gate.images += count

    def take_bytes(self, count: int) -> None:
        """Memory for a part of the body, or Busy."""
        if self._gate.bytes + count > self._gate.config.max_memory:
            raise Busy("memory", 1)
        self.bytes += count
        self._gate.bytes += count


class Gate:
    """Counts what is inside: pictures and bytes. It lives in the event loop's thread."""

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self.config, self.metrics = config, metrics
        self.images = self.bytes = 0
        self.rate = 0.0  # pictures a second, once known

    @property
    def delay(self) -> float:
        """How long a picture that comes now would wait for its turn; 0 as long as no rate is known."""
        return self.images / self.rate if self.rate else 0.0

    def check(self, count: int) -> None:
        """Raises Busy where so many pictures more would be too many, or too late."""
        if self.images and self.images + count > self.config.max_waiting:
            raise Busy("full", self.delay)
        if self.delay > self.config.max_delay:
            raise Busy("slow", self.delay - self.config.max_delay)

    @contextlib.contextmanager
    def enter(self) -> Iterator[Ticket]:
        """Room for a request with one picture; Busy at once where there is none."""
        ticket = Ticket(self)
        ticket.take_images(1)
        self.metrics.put("waiting_images", self.images)
        try:
            yield ticket
        finally:
            self.images -= ticket.images
            self.bytes -= ticket.bytes
            self.metrics.put("waiting_images", self.images)


class Batcher:
    """A thread that takes what waits, up to `max_batch` pictures for one model, and computes it.

    It waits at most `batch_wait`, and only for pictures that are inside the gate and not decoded yet: a lone request
    is computed at once, and while a batch is computed the next one gathers by itself.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate, self._config, self._metrics = gate, gate.config, gate.metrics
        self._queue: deque[_Waiting] = deque()
        self._wake, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    async def compute(self, image: Tensor, served: Served) -> Computed:
        """The logits of a picture C H W, as `engine.fitted` gives it."""
        answer: asyncio.Future[Computed] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._queue.append(_Waiting(image, served, answer))
            self._wake.notify()
        return await answer

    def close(self) -> None:
        """Stops after what is queued."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._collect():
            start = time.monotonic()
            loop = batch[0].answer.get_loop()
            try:
                images = torch.stack([item.image for item in batch])  # B C H W
                logits = batch[0].served.engine.predict(images)
            except Exception as error:  # the thread must outlive whatever an engine does; the requests hear of it
                told = functools.partial(_fail, batch, error)
            else:
                told = functools.partial(self._deliver, batch, logits, start, time.monotonic())
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(told)
            del batch, told

    def _collect(self) -> list[_Waiting]:
        """The next pictures, all for the same model; none only at the end."""
        with self._wake:
            while True:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if not self._queue:
                    return []
                until = self._queue[0].since + self._config.batch_wait
                while self._waits_for_more() and (left := until - time.monotonic()) > 0:
                    self._wake.wait(left)
                if batch := self._take():
                    return batch

    def _waits_for_more(self) -> bool:
        return not self._closed and len(self._queue) < min(self._config.max_batch, self._gate.images)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._config.max_batch:
            if self._queue[0].answer.cancelled():  # its request was given up
                self._queue.popleft()
            elif batch and self._queue[0].served is not batch[0].served:
                break
            else:
                batch.append(self._queue.popleft())
        return batch

    def _deliver(self, batch: list[_Waiting], logits: Tensor, start: float, end: float) -> None:
        rate = len(batch) / max(end - start, 1e-6)
        self._gate.rate = rate if not self._gate.rate else _MEMORY * rate + (1 - _MEMORY) * self._gate.rate
        self._metrics.add("images_total", amount=len(batch))
        self._metrics.observe("batch_size", len(batch))
        self._metrics.observe("compute_seconds", end - start)
        for item, row in zip(batch, logits, strict=True):
            self._metrics.observe("queue_seconds", start - item.since)
            if not item.answer.done():
                told = Computed(logits=row, batch=len(batch), queued=start - item.since, computing=end - start)
                item.answer.set_result(told)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(error)
