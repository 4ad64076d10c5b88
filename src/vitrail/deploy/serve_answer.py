"""Answers as the app gives them: a status, a body, and headers that let a browser do as little as possible."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

from vitrail.deploy.serve_upload import Gone, Receive, Refused

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]
T = TypeVar("T")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # for the log


def told(data: Any, status: int = 200, **notes: Any) -> Answer:
    """Data as JSON."""
    body = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    return Answer(body=body, status=status, notes=notes)


def refusal(refused: Refused) -> Answer:
    """One sentence as JSON."""
    names = {name.replace("_", "-"): value for name, value in refused.headers.items()}
    body = json.dumps({"error": refused.sentence}, ensure_ascii=False).encode()
    return Answer(body=body, status=refused.status, headers=names)


class Request:
    """What came: its head at once, its body on demand."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.client: str = scope["client"][0] if scope.get("client") else ""
        self._receive, self._query = receive, scope["query_string"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        length = self.header("content-length")
        self.unread = length not in ("", "0") or bool(self.header("transfer-encoding"))  # whether a part is to come

    def header(self, name: str) -> str:
        """A header's value, or nothing."""
        return self._headers.get(name.encode(), b"").decode("latin-1")

    async def receive(self) -> MutableMapping[str, Any]:
        """The next part of the body."""
        message = await self._receive()
        self.unread = bool(message.get("more_body", False))
        return message

    async def attended(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, once the body is whole; it is dropped, and Gone raised, when the client leaves."""
        doing, leaving = asyncio.create_task(work), asyncio.create_task(self._left())
        try:
            await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Gone
            return doing.result()
        finally:
            doing.cancel()
            leaving.cancel()

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def query(self, name: str) -> str | None:
        """A value of the address's query, or None."""
        try:
            found = parse_qs(self._query.decode("latin-1"), keep_blank_values=True, max_num_fields=16)
        except ValueError:
            raise Refused(400, "the address has more than 16 values after its question mark") from None
        return found[name][-1] if name in found else None


async def respond(send: Send, answer: Answer, *, request_id: str, closes: bool) -> None:
    """Sends an answer; `closes` tells the client to open another connection next time."""
    headers = _ALWAYS | {"content-type": answer.kind, "content-length": str(len(answer.body))} | dict(answer.headers)
    headers["x-request-id"] = request_id
    if closes:
        headers["connection"] = "close"
    coded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": coded})
    await send({"type": "http.response.body", "body": answer.body})
