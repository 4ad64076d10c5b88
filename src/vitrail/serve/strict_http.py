"""HTTP/1.1 without the readings that proxies and servers disagree about, which is what request smuggling lives on.

h11 refuses most of them: different Content-Lengths, spaces before a colon, codings other than chunked, damaged chunks.
It takes the rest, as RFC 9112 permits; a proxy in front may read them in another way, so they are refused here. The
service uses h11 even where httptools is installed.
"""

import re

import h11

MAX_HEAD = 32 << 10  # bytes
_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
_VERSIONS = (b"1.0", b"1.1")


class StrictConnection(h11.Connection):
    """A server's side of a connection; `fault` says why the last request was refused."""

    fault = "not a valid HTTP/1.1 request"

    @property
    def can_respond(self) -> bool:
        """Whether a response may begin: no other has begun for the current request."""
        return self.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; RemoteProtocolError for a head that could be read in two ways."""
        received = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = received[: len(received) - len(self.trailing_data[0])]
            if fault := _fault(head, event):
                self.fault = fault
                raise h11.RemoteProtocolError(fault)
        return event


def _fault(head: bytes, request: h11.Request) -> str | None:
    if len(head) > MAX_HEAD:  # h11 has this limit for a head that is not complete yet
        return f"the head of the request exceeds the limit of {MAX_HEAD:,} bytes"
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        return "the request has both Content-Length and Transfer-Encoding; send one of them"
    if b"transfer-encoding" in names and request.http_version < b"1.1":
        return "Transfer-Encoding needs HTTP/1.1"
    if request.http_version not in _VERSIONS:
        return "unsupported version of HTTP; use HTTP/1.1"
    if _BARE_LF.search(head):
        return "a line of the request ends in LF; use CR LF"
    if _FOLDED.search(head):
        return "a header continues on the next line; send it on one line"
    return None
