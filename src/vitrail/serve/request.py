"""A request with limits on its query and body, and work that stops when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.types import Message, Receive, Scope

from vitrail.serve.batching import Overloaded, Reservation
from vitrail.serve.config import ServeConfig
from vitrail.serve.upload_rate import UploadRate

MAX_PARAMETERS = 16
T = TypeVar("T")


class Request(StarletteRequest):
    """A request of Starlette with limits.

    `unread`: whether a part of the body has not arrived yet; `slow`: whether reading it was given up; `notes`: what the
    handler adds to the log line.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        async def tracked() -> Message:
            message = await receive()
            self.unread = bool(message.get("more_body", False))
            return message

        super().__init__(scope, tracked)
        self.notes: dict[str, Any] = {}
        self.unread = self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers
        self.slow = False

    def parameter(self, name: str) -> str | None:
        """A parameter of the query; None when it is missing."""
        if self.scope["query_string"].count(b"&") >= MAX_PARAMETERS:
            raise HTTPException(400, f"the query has more than {MAX_PARAMETERS} parameters")
        return self.query_params.get(name)

    async def read(self, reservation: Reservation, config: ServeConfig) -> bytearray:
        """The whole body. One that is too long is read on a while: a client that still sends would miss the error."""
        body, size = bytearray(), 0
        reservation.upload = upload = UploadRate(config.min_rate)
        try:
            async with upload.timeout:
                async for chunk in self.stream():
                    size += len(chunk)
                    if size <= config.max_bytes:
                        reservation.add_bytes(len(chunk))
                        body += chunk
                    else:
                        body.clear()
                    if size > 2 * config.max_bytes:
                        break
                    upload.add(len(chunk))
        except TimeoutError:
            self.slow = True
            if upload.dropped:
                raise Overloaded("memory", 1) from None
            raise HTTPException(408, f"the request body was sent at less than {upload.required}") from None
        finally:
            reservation.upload = None
        if size > config.max_bytes:
            raise HTTPException(413, f"the request body exceeds the limit of {config.max_bytes:,} bytes")
        return body

    async def discard(self, config: ServeConfig) -> None:
        """Reads the rest of a body that is not needed, for the same reason; within limits on bytes and time."""
        size, upload = 0, UploadRate(config.min_rate)
        try:
            async with asyncio.timeout(config.timeout), upload.timeout:
                async for chunk in self.stream():
                    size += len(chunk)
                    if size > 2 * config.max_bytes:
                        return
                    upload.add(len(chunk))
        except (TimeoutError, ClientDisconnect):
            return

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work, once the body has been read; cancels it and raises when the client disconnects."""
        working, leaving = asyncio.create_task(work), asyncio.create_task(self._disconnect())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()

    async def _disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
