"""The rate at which a request body arrives, and a time limit for those that are too slow.

A client that sends a byte now and then holds its connection and the bytes it has sent. `asyncio.timeout` alone limits
only the whole request; this deadline moves on with every window of time in which enough has arrived.
"""

import asyncio
import math

WINDOW = 5.0  # seconds; long enough for a phone that changes its network
_DECAY = 0.5  # seconds after which bytes count for 1/e in the rate


class Rate:
    """Bytes per second, of late: whoever was fast and now rests is slow."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._last, self._recent = loop, loop.time(), 0.0

    def add(self, count: int) -> None:
        """Counts bytes that have arrived."""
        self._recent, self._last = self.value * _DECAY + count, self._loop.time()

    @property
    def value(self) -> float:
        """Bytes per second."""
        return self._recent * math.exp((self._last - self._loop.time()) / _DECAY) / _DECAY


class UploadRate:
    """Measures one upload; made in the task that reads it. `timeout` is to be entered around the reading."""

    def __init__(self, min_rate: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._min_rate, self._window = min_rate, WINDOW
        self._start, self._bytes = self._loop.time(), 0  # of the window
        self._rate = Rate(self._loop)
        self.dropped = False
        self.timeout = asyncio.timeout(self._window if min_rate else None)

    @property
    def required(self) -> str:
        """What it must keep up, for people."""
        return f"{self._min_rate:,} bytes per second for {self._window:g} s"

    @property
    def rate(self) -> float:
        """Bytes per second, of late."""
        return self._rate.value

    def add(self, count: int) -> None:
        """Counts bytes that have arrived; moves the deadline on once there are enough for this window."""
        self._rate.add(count)
        windows = math.floor((self._loop.time() - self._start) / self._window)
        if windows > 0:
            self._start, self._bytes = self._start + windows * self._window, 0
        self._bytes += count
        if self._min_rate and not self.dropped and self._bytes >= self._min_rate * self._window:
            self.timeout.reschedule(self._start + 2 * self._window)

    def drop(self) -> None:
        """Ends the reading now."""
        self.dropped = True
        self.timeout.reschedule(self._loop.time())
