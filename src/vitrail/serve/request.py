"""A request with limits on its query and body, and work that stops when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.types import Message, Receive, Scope

from vitrail.serve.batching import Reservation
from vitrail.serve.config import ServeConfig

MAX_PARAMETERS = 16
T = TypeVar("T")


class Request(StarletteRequest):
    """`unread`: whether a part of the body has not arrived yet; `notes`: what the handler adds to the log line."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        async def tracked() -> Message:
            message = await receive()
            self.unread = bool(message.get("more_body", False))
            return message

        super().__init__(scope, tracked)
        self.notes: dict[str, Any] = {}
        self.unread = self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers

    def parameter(self, name: str) -> str | None:
        """A parameter of the query; None when it is missing."""
        if self.scope["query_string"].count(b"&") >= MAX_PARAMETERS:
            raise HTTPException(400, f"the query has more than {MAX_PARAMETERS} parameters")
        return self.query_params.get(name)

    async def read(self, reservation: Reservation, config: ServeConfig) -> bytes:
        """The whole body. One that is too long is read on a while: a client that still sends would miss the error."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.stream():
            size += len(chunk)
            if size <= config.max_bytes:
                reservation.add_bytes(len(chunk))
                chunks.append(chunk)
            else:
                chunks.clear()
            if size > 2 * config.max_bytes:
                break
        if size > config.max_bytes:
            raise HTTPException(413, f"the request body exceeds the limit of {config.max_bytes:,} bytes")
        return b"".join(chunks)

    async def discard(self, config: ServeConfig) -> None:
        """Reads the rest of a body that is not needed, for the same reason; within limits on bytes and time."""
        size = 0
        try:
            async with asyncio.timeout(config.timeout):
                async for chunk in self.stream():
                    size += len(chunk)
                    if size > 2 * config.max_bytes:
                        return
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
