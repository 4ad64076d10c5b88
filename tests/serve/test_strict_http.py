"""Requests that a proxy and the service could read in two ways, over raw sockets: refused and closed."""

import asyncio
import contextlib
import json

import pytest
from support.listening import listening
from support.small_service import app, picture

from vitrail.serve.config import ServeConfig

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
SMUGGLED = b"GET /model HTTP/1.1\r\nHost: localhost\r\n\r\n"  # must never be taken as a request of its own
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"

REFUSED = {
    "both lengths": HEAD + b"Content-Length: 5\r\n" + CHUNKED + CHUNKS,
    "both lengths, the other order": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHUNKS,
    "both lengths, one of them 0": HEAD + b"Content-Length: 0\r\n" + CHUNKED + CHUNKS,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
    "two lengths in one header": HEAD + b"Content-Length: 5, 6\r\n\r\nhello",
    "a length with a sign": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a hexadecimal length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\nhello",
    "an empty length": HEAD + b"Content-Length:\r\n\r\nhello",
    "a length of 25 digits": HEAD + b"Content-Length: " + b"9" * 25 + b"\r\n\r\nhello",
    "coding identity": HEAD + b"Transfer-Encoding: identity\r\n\r\nhello",
    "codings identity and chunked": HEAD + b"Transfer-Encoding: identity, chunked\r\n\r\n" + CHUNKS,
    "codings gzip and chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS,
    "two headers with codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + CHUNKS,
    "a coding that only looks like chunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "a coding in quotes": HEAD + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKS,
    "a vertical tab before the coding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "chunked in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + CHUNKED + CHUNKS,
    "HTTP/2.0": HEAD.replace(b"1.1", b"2.0") + b"Content-Length: 5\r\n\r\nhello",
    "a folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "a folded header": HEAD + b"X-Note: a\r\n\tb\r\nContent-Length: 5\r\n\r\nhello",
    "a folded first header": b"POST /predict HTTP/1.1\r\n Host: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "a space before the colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "a tab before the colon": HEAD + b"Transfer-Encoding\t: chunked\r\n\r\n" + CHUNKS,
    "a name in two words": HEAD + b"Content Length: 5\r\n\r\nhello",
    "no name": HEAD + b": 5\r\n\r\nhello",
    "no colon": HEAD + b"Content-Length\r\n\r\nhello",
    "LF alone": HEAD + b"X-Note: a\nContent-Length: 5\r\n\r\nhello",
    "LF alone at the end of the head": HEAD + b"Content-Length: 5\r\n\nhello",
    "LF alone everywhere": (HEAD + b"Content-Length: 5\r\n\r\n").replace(b"\r", b"") + b"hello",
    "CR alone": HEAD + b"X-Note: a\rContent-Length: 5\r\n\r\nhello",
    "two CR": HEAD + b"Content-Length: 5\r\r\n\r\nhello",
    "NUL in a value": HEAD + b"Content-Length: 5\0\r\n\r\nhello",
    "NUL in a name": HEAD + b"Content-Length\0: 5\r\n\r\nhello",
    "two hosts": HEAD + b"Host: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "no host": b"POST /predict HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "two spaces in the first line": b"POST  /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "a space in the path": b"POST /predict x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/0.9": b"GET /model\r\n\r\n",
    "a chunk of negative size": HEAD + CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "a chunk size with a prefix": HEAD + CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size of 25 digits": HEAD + CHUNKED + b"F" * 25 + b"\r\nhello\r\n0\r\n\r\n",
    "a chunk longer than it says": HEAD + CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "a chunk without an end": HEAD + CHUNKED + b"5\r\nhelloXX0\r\n\r\n",
    "LF after a chunk": HEAD + CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "LF in a chunk extension": HEAD + CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "a folded trailer": HEAD + CHUNKED + b"5\r\nhello\r\n0\r\n X: y\r\n\r\n",
    "a head that is too long": HEAD + b"X-Note: " + b"a" * (64 << 10) + b"\r\nContent-Length: 5\r\n\r\nhello",
}  # fmt: skip


def answers(sent: dict[str, bytes]) -> dict[str, bytes]:
    """What comes back to each text on a connection of its own until the service closes it."""

    async def one(address: tuple[str, int], data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.closing(writer):
            writer.write(data)
            return await reader.read()

    async def story() -> dict[str, bytes]:
        of = app()
        async with asyncio.timeout(60), listening(of, ServeConfig(), 60.0) as (address, _):
            found = await asyncio.gather(*(one(address, data) for data in sent.values()))
        assert of.metrics.total("malformed_total") == sum(b" 400 " in answer[:13] for answer in found)
        return dict(zip(sent, found, strict=True))

    return asyncio.run(story())


def test_requests_that_can_be_read_in_two_ways() -> None:
    for name, answer in answers({name: text + SMUGGLED for name, text in REFUSED.items()}).items():
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), (name, answer)
        assert b"connection: close" in head, name
        assert json.loads(body)["error"], f"one answer and no more: {name}"


def test_requests_that_are_unusual_but_clear() -> None:
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    png = picture()
    size = str(len(png)).encode()
    whole = {
        "the same length twice": HEAD + b"Content-Length: " + size + b"\r\nContent-Length: " + size + b"\r\n\r\n" + png,
        "chunks": HEAD + CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(png), png),
        "a chunk extension": HEAD + CHUNKED + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(png), png),
        "a trailer": HEAD + CHUNKED + b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(png), png),
        "capital letters": HEAD + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(png), png),
    }  # fmt: skip
    for name, answer in answers({name: text + last for name, text in whole.items()}).items():
        assert answer.count(b"HTTP/1.1 200 OK") == 2, (name, answer)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_head_that_comes_in_pieces(size: int) -> None:
    async def story() -> bytes:
        async with asyncio.timeout(60), listening(app(), ServeConfig(), 60.0) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            data = REFUSED["both lengths"]
            for start in range(0, len(data), size):
                writer.write(data[start : start + size])
                await asyncio.sleep(0)
            answer = await reader.read()
            writer.close()
            return answer

    assert asyncio.run(story()).startswith(b"HTTP/1.1 400 ")
