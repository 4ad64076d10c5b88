"""Limits on connections: how many there may be, how long a client may take to send the head of a request, valid HTTP.

Idle connections are closed before new ones are refused, then those whose clients send too slowly.
"""

import asyncio
import contextlib
from typing import Any

from vitrail.serve.config import ServeConfig
from vitrail.serve.metrics import Metrics
from vitrail.serve.upload_rate import Rate
from vitrail.strict_json import to_json

HEAD_SECONDS = 10.0  # for the head of a request, from the connection or from its first byte
# How long a connection may stay idle. Proxies close theirs after a minute; if we closed first, a request that is on its
# way at that moment would be lost.
KEEP_ALIVE_SECONDS = 75
_YOUNG = 1.0  # seconds: how fast the client of a new connection is, is not known yet
READ_SECONDS = 60.0  # for a response to be read
_LINGER = 1.0  # seconds for which a refused connection stays open: a client that is still sending would miss the answer


def _refusal(status: str, error: str, *headers: str) -> bytes:
    """A whole response, after which the connection is closed."""
    body = to_json({"error": error}).encode()
    lines = [f"HTTP/1.1 {status}", *headers, "connection: close", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


_REFUSED = _refusal("503 Service Unavailable", "too many connections; try again in 1 s", "retry-after: 1")


class LimitedConnection(asyncio.Protocol):
    """A mixin for uvicorn's HTTP protocol."""

    head_seconds: float
    max_connections: int
    metrics: Metrics
    # Of uvicorn:
    conn: Any  # h11's side of the connection
    connections: set[Any]
    cycle: Any  # the current or the last request; None before the first
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    min_rate: int

    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None  # runs while a response waits for its client
    _refused = False
    _made = 0.0  # when, by the clock of the loop
    _rate: Rate

    @property
    def idle(self) -> bool:
        """Whether a request was answered on this connection and no other has begun."""
        answered: bool = getattr(self.cycle, "response_complete", False)
        return answered and self._timer is None and not self.transport.is_closing()

    @property
    def slow(self) -> bool:
        """Whether the client should send a head or a body, and sends it too slowly."""
        awaited = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        young = self.loop.time() - self._made < _YOUNG
        return awaited and not young and not self.transport.is_closing() and self._rate.value < self.min_rate

    def connection_made(self, transport: Any) -> None:
        """Starts the timer; when there are too many connections, closes the least useful one or refuses this one."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` as soon as the client does not keep up
        self._made, self._rate = self.loop.time(), Rate(self.loop)
        excess = len(self.connections) - self.max_connections
        spare = self._spare() if excess > 0 else None
        if spare is not None:
            spare.transport.close()
        if excess <= 0 or spare is not None:
            self._timer = self.loop.call_later(self.head_seconds, transport.close)
            return
        self._refuse(_REFUSED)
        if excess > self.max_connections:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Stops the timer when a head is complete; starts it when another begins."""
        if self._refused or self.transport.is_closing():
            return
        self._rate.add(len(data))
        before = self.cycle
        super().data_received(data)
        if self._refused:
            return
        if self.cycle is not before:
            self._stop()
        elif self._timer is None and getattr(before, "response_complete", True):  # None before the first request
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that is not valid HTTP, and closes: what follows it cannot be told apart from it."""
        self.metrics.add("malformed_total")
        if self.cycle is not None:
            self.cycle.disconnected = True  # whatever the app answers now must not follow
        self._refuse(_refusal("400 Bad Request", self.conn.fault) if self.conn.can_respond else b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._stop()
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the time that the client has to read the response."""
        self._reading = self.loop.call_later(READ_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Everything is sent."""
        self._stop_reading()
        super().resume_writing()

    def _spare(self) -> "LimitedConnection | None":
        """An idle connection, otherwise the slowest of those that are too slow."""
        if (idle := next((other for other in self.connections if other.idle), None)) is not None:
            return idle
        return min((other for other in self.connections if other.slow), key=lambda one: one._rate.value, default=None)

    def _refuse(self, response: bytes) -> None:
        """Sends a last response; what still arrives is ignored, and a moment later the connection is closed."""
        self._stop()
        self._refused = True
        self.transport.write(response)
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has closed it already
                self.transport.write_eof()
            self._timer = self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited_protocol(
    config: ServeConfig, metrics: Metrics, head_seconds: float = HEAD_SECONDS
) -> type[asyncio.Protocol]:
    """The HTTP/1.1 protocol of uvicorn with these limits."""
    import h11  # noqa: PLC0415  (an extra)
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    from vitrail.serve.strict_http import MAX_HEAD, StrictConnection  # noqa: PLC0415

    class LimitedProtocol(LimitedConnection, H11Protocol):
        max_connections, min_rate = config.max_connections, config.min_rate

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.conn = StrictConnection(h11.SERVER, MAX_HEAD)
            self.metrics, self.head_seconds = metrics, head_seconds

    return LimitedProtocol
