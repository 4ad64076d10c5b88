"""Connections with an end: a client that sends the head of a request too slowly, or comes on top of too many, goes.

Before one that comes is sent away, one that rests goes instead.
"""

import asyncio
from typing import Any

from vitrail.deploy.serve_config import ServeConfig

HEAD_SECONDS = 10.0  # for the head of a request, from the connection or its first byte on
# A connection may rest so long; proxies let go of one after a minute. Were we the first to, a request on its way at
# that moment would be lost.
REST_SECONDS = 75
_LINGER = 1.0  # seconds for which one that was sent away is listened to, since an answer to a closed door is lost
_FULL = b'{"error": "there are too many connections; try again in 1 s"}'
_TOLD = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


class Patience(asyncio.Protocol):
    """What is added to a protocol of uvicorn: patience, but not for ever."""

    head_seconds: float
    most: int  # connections
    # Of uvicorn:
    connections: set[Any]
    cycle: Any  # the present or the last request; None before the first
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    _timer: asyncio.TimerHandle | None = None
    _told = False  # that it is one too many

    @property
    def rests(self) -> bool:
        """Whether a request was answered here, and none has begun since."""
        answered: bool = getattr(self.cycle, "response_complete", False)
        return answered and self._timer is None and not self.transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Starts the clock, or sends one too many away."""
        super().connection_made(transport)
        over = len(self.connections) - self.most
        resting = next((other for other in self.connections if other.rests), None) if over > 0 else None
        if resting is not None:
            resting.transport.close()
        self._told = over > 0 and resting is None
        self._timer = self.loop.call_later(_LINGER if self._told else self.head_seconds, transport.close)
        if self._told:
            transport.write(_TOLD)
            if over > self.most or not transport.can_write_eof():
                transport.close()
            else:
                transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Stops the clock when a head is whole; starts it when another begins."""
        if self._told or self.transport.is_closing():
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop()
        elif self._timer is None and getattr(before, "response_complete", True):  # None before the first request
            self._timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def patient_protocol(config: ServeConfig, head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The HTTP/1.1 protocol of uvicorn with those limits."""
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415  (an extra)

    return type("Patient", (Patience, H11Protocol), {"most": config.max_connections, "head_seconds": head_seconds})
