"""Limits on connections: how many there may be, and how long a client may take to send the head of a request.

Idle connections are closed before new ones are refused.
"""

import asyncio
from typing import Any

from vitrail.serve.config import ServeConfig

HEAD_SECONDS = 10.0  # for the head of a request, from the connection or from its first byte
# How long a connection may stay idle. Proxies close theirs after a minute; if we closed first, a request that is on its
# way at that moment would be lost.
KEEP_ALIVE_SECONDS = 75
_LINGER = 1.0  # seconds for which a refused connection stays open: a client that is still sending would miss the answer
_BODY = b'{"error": "too many connections; try again in 1 s"}'
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class LimitedConnection(asyncio.Protocol):
    """A mixin for uvicorn's HTTP protocol."""

    head_seconds: float
    max_connections: int
    # Of uvicorn:
    connections: set[Any]
    cycle: Any  # the current or the last request; None before the first
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    _timer: asyncio.TimerHandle | None = None
    _refused = False

    @property
    def idle(self) -> bool:
        """Whether a request was answered on this connection and no other has begun."""
        answered: bool = getattr(self.cycle, "response_complete", False)
        return answered and self._timer is None and not self.transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Starts the timer; when there are too many connections, closes an idle one or refuses this one."""
        super().connection_made(transport)
        excess = len(self.connections) - self.max_connections
        idle = next((other for other in self.connections if other.idle), None) if excess > 0 else None
        if idle is not None:
            idle.transport.close()
        self._refused = excess > 0 and idle is None
        self._timer = self.loop.call_later(_LINGER if self._refused else self.head_seconds, transport.close)
        if self._refused:
            transport.write(_REFUSED)
            if excess > self.max_connections or not transport.can_write_eof():
                transport.close()
            else:
                transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Stops the timer when a head is complete; starts it when another begins."""
        if self._refused or self.transport.is_closing():
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop()
        elif self._timer is None and getattr(before, "response_complete", True):  # None before the first request
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited_protocol(config: ServeConfig, head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The HTTP/1.1 protocol of uvicorn with these limits."""
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415  (an extra)

    limits = {"max_connections": config.max_connections, "head_seconds": head_seconds}
    return type("LimitedProtocol", (LimitedConnection, H11Protocol), limits)
