"""Images fetched from URLs, for a service that allows some hosts.

A host name is resolved once, the addresses are checked, and the connection goes to a checked address: a name server
that answers differently the next time gains nothing. Nothing of the client's request is passed on, and redirects are
not followed. An HTTP client library would resolve the name again by itself, so h11 is used directly.
"""

import asyncio
import functools
import json
import re
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from starlette.exceptions import HTTPException

from vitrail import __version__
from vitrail.serve.batching import Reservation
from vitrail.serve.config import ServeConfig
from vitrail.serve.hosts import PORTS, Address, Host, is_public, parse_ip
from vitrail.serve.upload import File, clean_name

if TYPE_CHECKING:
    import h11

TIME_SHARE = 0.5  # of a request's time limit; the rest is for decoding and computing
MAX_URL = 2048  # characters
_MAX_BODY = 4 * MAX_URL  # bytes of the JSON around it
_CHUNK = 1 << 16
_SAFE = "%/:=&?~+!$,;'@()*[]"  # characters of a path and query that are not quoted
_NAME = re.compile(r"[a-z0-9_.-]+")


class Url(NamedTuple):
    """A parsed URL."""

    scheme: str
    host: str
    port: int
    target: str  # path and query

    @property
    def name(self) -> str:
        """The file name in the response."""
        return clean_name(unquote(self.target.partition("?")[0]).encode())

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def is_json(content_type: str) -> bool:
    """Whether a body is JSON with a URL."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def allowed_url(body: bytes | bytearray, config: ServeConfig) -> Url:
    """The URL in a body `{"url": "https://…"}`, when the service may fetch from its host."""
    if not config.url_hosts:
        raise HTTPException(
            415, "this service does not fetch URLs; upload the file, or start the service with --allow-urls HOSTS"
        )
    url = _parse(_read_url(body))
    if not any(Host.parse(text).allows(url.host, url.port, url.scheme) for text in config.url_hosts):
        raise HTTPException(403, f"host not allowed: {url.authority[:80]}; see --allow-urls")
    return url


def _read_url(body: bytes | bytearray) -> str:
    try:
        data = json.loads(body) if len(body) <= _MAX_BODY else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or list(data) != ["url"] or not isinstance(data["url"], str):
        raise HTTPException(400, 'the body must be JSON with one key: {"url": "https://…"}')
    return str(data["url"])


def _parse(text: str) -> Url:
    """Parses a URL; errors do not repeat any part of it."""
    if len(text) > MAX_URL:
        raise HTTPException(400, f"the URL exceeds the limit of {MAX_URL:,} characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_SAFE)
    except ValueError:  # wrong brackets or port, half of a surrogate pair
        raise HTTPException(400, "the URL is not valid") from None
    if "@" in parts.netloc:
        raise HTTPException(400, "the URL contains a user name or password; remove it")
    if (address := parse_ip(host)) is not None:
        host = str(address)
    if parts.scheme not in PORTS or (address is None and not _NAME.fullmatch(host)):
        raise HTTPException(400, "the URL must start with http:// or https:// and a host")
    return Url(parts.scheme, host, PORTS[parts.scheme] if port is None else port, target)


async def fetch(url: Url, reservation: Reservation, config: ServeConfig, *, until: float) -> File:
    """Downloads a file within the limits on bytes and, by the loop's clock, on time."""
    import h11  # noqa: PLC0415  (comes with uvicorn)

    try:
        async with asyncio.timeout_at(until):
            addresses = await _resolve(url)
            return File(url.name, await _download(url, addresses, reservation, config))
    except TimeoutError:
        why = f"the image was not received within {TIME_SHARE * config.timeout:g} s"
    except (socket.gaierror, UnicodeError):  # UnicodeError: a name that DNS cannot have
        why = "the host name cannot be resolved"
    except ssl.SSLError as error:
        why = f"the TLS connection failed: {getattr(error, 'verify_message', '') or 'protocol error'}"
    except OSError:
        why = "the connection failed"
    except h11.ProtocolError:
        why = "the response is incomplete or not valid HTTP"
    raise HTTPException(422, f"cannot fetch from {url.authority[:80]}: {why}")


async def _resolve(url: Url) -> list[Address]:
    """The addresses of a host: of a name, public ones only; an IP address is taken as it is."""
    if (literal := parse_ip(url.host)) is not None:
        return [literal]
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    addresses = [address for entry in entries if (address := parse_ip(str(entry[4][0]))) is not None]
    if not all(map(is_public, addresses)):
        raise HTTPException(403, f"{url.authority[:80]} resolves to a private address, which is not allowed")
    return addresses


async def _download(url: Url, addresses: list[Address], reservation: Reservation, config: ServeConfig) -> bytes:
    reader, writer = await _connect(url, addresses)
    try:
        connection = _send_request(url, writer)
        await writer.drain()
        return await _receive_body(connection, reader, reservation, config, url)
    finally:
        writer.transport.abort()


async def _connect(url: Url, addresses: list[Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that accepts one."""
    context, server_name = (_tls_context(), url.host) if url.scheme == "https" else (None, None)
    failure: OSError = socket.gaierror("the name has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(str(address), url.port, ssl=context, server_hostname=server_name)
        except OSError as error:
            failure = error
    raise failure


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _send_request(url: Url, writer: asyncio.StreamWriter) -> "h11.Connection":
    """Writes a GET request; the response is read through the returned connection."""
    import h11  # noqa: PLC0415

    headers = {"host": url.authority, "user-agent": f"vitrail/{__version__}", "accept": "image/*"}
    headers |= {"accept-encoding": "identity", "connection": "close"}
    connection = h11.Connection(h11.CLIENT)
    for event in (h11.Request(method="GET", target=url.target, headers=list(headers.items())), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    return connection


async def _receive_body(
    connection: "h11.Connection", reader: asyncio.StreamReader, reservation: Reservation, config: ServeConfig, url: Url
) -> bytes:
    """The body of the response; stops reading when it is too long."""
    import h11  # noqa: PLC0415

    chunks: list[bytes] = []
    size = 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            _check_status(event.status_code, url)
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > config.max_bytes:
                raise HTTPException(413, f"the image exceeds the limit of {config.max_bytes:,} bytes")
            reservation.add_bytes(len(event.data))
            chunks.append(bytes(event.data))
    return b"".join(chunks)


def _check_status(status: int, url: Url) -> None:
    if 300 <= status < 400:
        raise HTTPException(
            422, f"{url.authority[:80]} redirects ({status}); redirects are not followed, use the final URL"
        )
    if status != 200:
        raise HTTPException(422, f"{url.authority[:80]} answered with status {status}")
