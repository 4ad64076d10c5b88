"""Request bodies -> files -> pictures, each step within limits."""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.data.decode import decode
from vitrail.deploy.engine import Engine
from vitrail.deploy.serve_batch import Ticket
from vitrail.deploy.serve_config import ServeConfig
from vitrail.errors import BrokenImage

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;\s]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'filename="((?:[^"\\]|\\.)*)"|filename=([^;\s]+)', re.IGNORECASE)
_RAW = ("image/", "application/octet-stream")
_LONGEST_NAME = 120
_HEADERS = 8192  # bytes that the head of one part may have


class Refused(Exception):
    """A request that is not answered: the status and one sentence on why."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


class Gone(Exception):
    """The client has left before its request was whole."""


class File(NamedTuple):
    """One uploaded file."""

    name: str
    data: bytes


async def read_body(receive: Receive, ticket: Ticket, config: ServeConfig) -> bytes:
    """The whole body within the limits on bytes; one that is too long is read to its end, so that the client hears."""
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > config.max_bytes:
            chunks.clear()
            if size > 2 * config.max_bytes:
                break
        elif chunk:
            ticket.take_bytes(len(chunk))
            chunks.append(chunk)
    if size > config.max_bytes:
        raise Refused(413, f"the request has more than {config.max_bytes:,} bytes, the most that is taken")
    return b"".join(chunks)


async def discard(receive: Receive, config: ServeConfig) -> None:
    """Reads a body that nobody wants: a client that is still sending would not hear the answer."""
    size, more = 0, True
    try:
        async with asyncio.timeout(config.timeout):
            while more and size <= 2 * config.max_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    except TimeoutError:
        return


def files_of(body: bytes, content_type: str, config: ServeConfig) -> list[File]:
    """The files of a form, or the body itself as one."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = _BOUNDARY.search(content_type)
        if found is None:
            raise Refused(400, "the form names no boundary in its Content-Type")
        files = _parts(body, (found[1] or found[2]).encode("latin-1", "replace"), config.max_files)
    elif kind.startswith(_RAW):
        files = [File("picture", body)]
    else:
        raise Refused(415, f"{kind[:80] or 'nothing'} is no way to send pictures; use multipart/form-data or image/…")
    if not files:
        raise Refused(400, "the form has no file; send each picture as a part with a filename")
    return files


def _parts(body: bytes, boundary: bytes, most: int) -> list[File]:
    """The parts of a form that are files (RFC 7578)."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, most + 1)  # what stands before, the parts, "--" at the end
    if len(pieces) == most + 2 and not pieces[-1].startswith(b"--"):
        raise Refused(413, f"the form has more than {most} parts, the most that is taken")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise Refused(400, "the form is not whole: its last boundary is missing")
    files = []
    for piece in pieces[1:-1]:
        head, blank, _ = piece[: _HEADERS + 4].partition(b"\r\n\r\n")
        if not blank:
            raise Refused(400, f"a part of the form has no head, or one of more than {_HEADERS} bytes")
        if (named := _NAME.search(head)) is not None:
            files.append(File(clean_name(named[1] if named[1] is not None else named[2]), piece[len(head) + 4 :]))
    return files


def clean_name(name: bytes) -> str:
    """The last part of a path, as it may be shown."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in text if letter.isprintable())[:_LONGEST_NAME] or "picture"


def picture(file: File, engine: Engine, config: ServeConfig) -> Tensor:
    """A file as the model takes it: uint8 C H W; BrokenImage where it is none, or has too many pixels."""
    pixels = decode(file.data, name=file.name, max_pixels=config.max_pixels)
    try:
        return engine.fitted([pixels])[0].contiguous()
    except RuntimeError as error:  # a side of no pixels, or a shape that cannot be resized
        raise BrokenImage(f"{file.name} cannot be resized: {str(error).splitlines()[0]}") from error
