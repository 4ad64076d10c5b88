"""Pictures by address, for a service that was told which hosts to fetch from.

A name is looked up once, what comes is checked, and the connection goes to what was checked: a name server that answers
differently the next time leads nowhere. Nothing of the client's request is passed on, and no redirect is followed.
"""

import asyncio
import functools
import json
import re
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from vitrail import __version__
from vitrail.deploy.serve_batch import Ticket
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_hosts import PORTS, Address, Host, is_public, named_address
from vitrail.deploy.serve_upload import File, Refused, clean_name

if TYPE_CHECKING:
    import h11

SHARE = 0.5  # of a request's time; the rest is for decoding and computing
LONGEST = 2048  # characters of an address
_BODY = 4 * LONGEST  # bytes of the JSON around it
_CHUNK = 1 << 16
_KEPT = "%/:=&?~+!$,;'@()*[]"  # characters of a path and query that stay as they are
_NAME = re.compile(r"[a-z0-9_.-]+")


class Place(NamedTuple):
    """Where a picture is: an address, taken apart."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, as they are asked for

    @property
    def name(self) -> str:
        """What the picture is called in the answer."""
        return clean_name(unquote(self.target.partition("?")[0]).encode())

    @property
    def header(self) -> str:
        """The host as a request names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def is_address(content_type: str) -> bool:
    """Whether a body says where a picture is, and is none itself."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def place_of(body: bytes, config: ServeConfig) -> Place:
    """The address in a body `{"url": "https://…"}`, where the service may fetch from its host."""
    if not config.url_hosts:
        raise Refused(
            415, "pictures are not fetched by address here; send the file, or start the service with --allow-urls HOSTS"
        )
    place = _parsed(_url(body))
    if not any(Host.parse(text).holds(place.host, place.port, place.scheme) for text in config.url_hosts):
        raise Refused(403, f"pictures are not fetched from {place.header[:80]}; it is no host of --allow-urls")
    return place


def _url(body: bytes) -> str:
    try:
        told = json.loads(body) if len(body) <= _BODY else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or list(told) != ["url"] or not isinstance(told["url"], str):
        raise Refused(400, 'the body is not what names a picture: {"url": "https://…"}')
    return str(told["url"])


def _parsed(url: str) -> Place:
    """An address, taken apart; nothing of one that is odd is said back."""
    if len(url) > LONGEST:
        raise Refused(400, f"the address of the picture has more than {LONGEST:,} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
    except ValueError:  # brackets or a port that are none, half a character
        raise Refused(400, "the address of the picture cannot be read") from None
    if "@" in parts.netloc:
        raise Refused(400, "the address has a user or a password in it; they would not be sent, so leave them out")
    if (address := named_address(host)) is not None:
        host = str(address)
    if parts.scheme not in PORTS or (address is None and not _NAME.fullmatch(host)):
        raise Refused(400, "the address of a picture begins with http:// or https:// and a host")
    return Place(parts.scheme, host, PORTS[parts.scheme] if port is None else port, target)


async def fetch(place: Place, ticket: Ticket, config: ServeConfig, *, until: float) -> File:
    """The file at an address, within the limits on bytes and, by the loop's clock, time; Refused says why not."""
    import h11  # noqa: PLC0415  (comes with uvicorn)

    try:
        async with asyncio.timeout_at(until):
            addresses = await _looked_up(place)
            return File(place.name, await _downloaded(place, addresses, ticket, config))
    except TimeoutError:
        why = f"did not send the picture within {SHARE * config.timeout:g} s"
    except (socket.gaierror, UnicodeError):  # UnicodeError: a name that cannot be one
        why = "cannot be found"
    except ssl.SSLError as error:
        why = f"cannot be trusted: {getattr(error, 'verify_message', '') or 'it does not speak TLS as it must'}"
    except OSError:
        why = "cannot be reached"
    except h11.ProtocolError:
        why = "broke off, or does not speak HTTP as it must"
    raise Refused(422, f"{place.header[:80]} {why}")


async def _looked_up(place: Place) -> list[Address]:
    """The addresses of a host; of a name, none that is not public: whoever names an address means that machine."""
    if (literal := named_address(place.host)) is not None:
        return [literal]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    addresses = [address for entry in found if (address := named_address(str(entry[4][0]))) is not None]
    if not all(map(is_public, addresses)):
        raise Refused(403, f"{place.header[:80]} is a machine of a private network; pictures are not fetched from it")
    return addresses


async def _downloaded(place: Place, addresses: list[Address], ticket: Ticket, config: ServeConfig) -> bytes:
    reader, writer = await _connected(place, addresses)
    try:
        connection = _asked(place, writer)
        await writer.drain()
        return await _received(connection, reader, ticket, config, place)
    finally:
        writer.transport.abort()


async def _connected(place: Place, addresses: list[Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one."""
    trust, certified = (_trust(), place.host) if place.scheme == "https" else (None, None)
    failed: OSError = socket.gaierror("the name has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(str(address), place.port, ssl=trust, server_hostname=certified)
        except OSError as error:
            failed = error
    raise failed


@functools.cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _asked(place: Place, writer: asyncio.StreamWriter) -> "h11.Connection":
    """Sends the question; what comes back is read through the connection that is given."""
    import h11  # noqa: PLC0415

    headers = {"host": place.header, "user-agent": f"vitrail/{__version__}", "accept": "image/*"}
    headers |= {"accept-encoding": "identity", "connection": "close"}
    connection = h11.Connection(h11.CLIENT)
    for event in (h11.Request(method="GET", target=place.target, headers=list(headers.items())), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    return connection


async def _received(
    connection: "h11.Connection", reader: asyncio.StreamReader, ticket: Ticket, config: ServeConfig, place: Place
) -> bytes:
    """The body of the answer, cut off where it is too long."""
    import h11  # noqa: PLC0415

    chunks: list[bytes] = []
    size = 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Response):
            _check_status(event.status_code, place)
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > config.max_bytes:
                raise Refused(413, f"the picture has more than {config.max_bytes:,} bytes, the most that is taken")
            ticket.take_bytes(len(event.data))
            chunks.append(bytes(event.data))
    return b"".join(chunks)


def _check_status(status: int, place: Place) -> None:
    if 300 <= status < 400:
        where = f"{place.header[:80]} sends elsewhere ({status})"
        raise Refused(422, f"{where}, which is not followed; name the picture's own address")
    if status != 200:
        raise Refused(422, f"{place.header[:80]} answers {status}, and no picture")
