"""Connections with an end: a client that sends the head of a request too slowly, or comes on top of too many, goes."""

import asyncio
from typing import Any

from vitrail.deploy.serve_config import ServeConfig

HEAD_SECONDS = 10.0  # for the head of a request, from the connection or its first byte on
_FULL = b'{"error": "there are too many connections; try again in 1 s"}'
_TOLD = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


def patient_protocol(config: ServeConfig, head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The HTTP/1.1 protocol of uvicorn with those two limits."""
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415  (an extra)

    class Patient(H11Protocol):
        """Patient, but not for ever."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Starts the clock."""
            super().connection_made(transport)
            if len(self.connections) > config.max_connections:
                transport.write(_TOLD)
                transport.close()
            else:
                self._timer = self.loop.call_later(head_seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            """Stops the clock when a head is whole; starts it when another begins."""
            if self.transport.is_closing():
                return
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop()
            elif self._timer is None and getattr(before, "response_complete", True):  # None before the first request
                self._timer = self.loop.call_later(head_seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            """Stops the clock."""
            self._stop()
            super().connection_lost(exc)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient
