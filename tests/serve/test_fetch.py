"""Images from URLs: which hosts are allowed, limits on bytes and time, and errors."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import processes
from support.small_service import Halves, Reply, app, ask, picture, post, until

from vitrail.serve import fetch, predict
from vitrail.serve.app import App

JSON = {"content_type": "application/json"}
HOSTS = ("example.org", "*.images.example.org")
PUBLIC = "93.184.215.14"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A host on this machine: what was asked of it, and how it answers."""

    def __init__(self, answer: bytes = b"", *, then: Handler | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.then, self.tls = answer, then, tls
        self.asked: list[str] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            await writer.drain()
            if self.then is not None:
                await self.then(reader, writer)
        writer.close()


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers))
    return f"{head}\r\n\r\n".encode() + body


def body_of(url: str) -> bytes:
    return json.dumps({"url": url}).encode()


async def fetched(
    site: Site, *, of: App | None = None, host: str = "127.0.0.1", way: str = "", **changes: Any
) -> Reply:
    """What the service says of a picture on a site that it may fetch from."""
    async with site.open():
        of = of or app(url_hosts=(f"{host}:{site.port}",), **changes)
        scheme = "http" if site.tls is None else "https"
        url = f"{scheme}://{host}:{site.port}/trip/holiday%20photo.png?size=2 3"
        reply = await ask(of, way or "/predict", method="POST", body=body_of(url), **JSON)
    assert (of.limiter.images, of.limiter.bytes) == (0, 0)
    return reply


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """A name server that knows every name; the names that were looked up."""
    names: list[str] = []

    def look_up(name: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        names.append(name)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names


# --- what is fetched -------------------------------------------------------------------------------------------------


def test_an_image_from_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    site, file = Site(http(picture(250))), picture(250)

    async def story() -> Reply:
        async with site.open():
            of = app(url_hosts=("example.org", f"127.0.0.1:{site.port}"))
            url = f"http://127.0.0.1:{site.port}/trip/holiday%20photo.png?size=2 3&ö#part"
            reply = await ask(of, "/predict", method="POST", body=body_of(url), cookie="c=1", x_api_key="k", **JSON)
        assert of.metrics.total("fetched_bytes_total") == len(file)
        return reply

    reply = asyncio.run(story())
    (found,) = reply.data["predictions"]
    assert (reply.status, found["name"], found["answers"][0]["label"]) == (200, "holiday photo.png", "bright")
    (asked,) = site.asked
    assert asked.startswith("GET /trip/holiday%20photo.png?size=2%203&%C3%B6 HTTP/1.1\r\n")
    names = {line.partition(":")[0].lower() for line in asked.splitlines()[1:-1]}
    assert names == {"host", "user-agent", "accept", "accept-encoding", "connection"}  # nothing of the client's
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["bytes"] == len(file)
    assert "holiday" not in line
    assert "127.0.0.1" not in line


def test_an_explanation_of_a_url() -> None:
    reply = asyncio.run(fetched(Site(http(picture(255))), explainer=Halves(), way="/explain?target=dark"))
    assert (reply.status, reply.data["target"]["name"]) == (200, "dark")


def test_a_name_is_looked_up_once_and_the_connection_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    names, site, connect, opened = resolver(monkeypatch, PUBLIC), Site(http(picture())), asyncio.open_connection, []

    async def to_the_site(host: str, port: int, **more: Any) -> Any:
        opened.append((host, port, more["server_hostname"]))
        return await connect("127.0.0.1", site.port)

    monkeypatch.setattr(asyncio, "open_connection", to_the_site)

    async def story() -> list[Reply]:
        of = app(url_hosts=HOSTS)
        async with site.open():
            urls = ("http://EXAMPLE.org/a.png", "http://b.images.example.org")
            return [await ask(of, "/predict", method="POST", body=body_of(url), **JSON) for url in urls]

    assert [reply.status for reply in asyncio.run(story())] == [200, 200]
    assert opened == [(PUBLIC, 80, None)] * 2
    assert names == ["example.org", "b.images.example.org"]
    assert "\r\nhost: example.org\r\n" in site.asked[0].lower()
    assert site.asked[1].startswith("GET / HTTP/1.1")


def test_https_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days"]
    made += ["1", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    try:
        assert processes.run(made).returncode == 0
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    unknown = asyncio.run(fetched(Site(http(picture()), tls=tls)))
    assert unknown.status == 422
    assert re.search(r"TLS .*self.signed", unknown.data["error"])
    monkeypatch.setattr(fetch, "_tls_context", lambda: ssl.create_default_context(cafile=certificate))
    assert asyncio.run(fetched(Site(http(picture()), tls=tls))).status == 200


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_nothing_is_fetched_unless_the_service_allows_it(path: str) -> None:
    reply = post(app(explainer=Halves()), path, body_of("http://127.0.0.1:1/a.png"), **JSON)
    assert reply.status == 415
    assert "--allow-urls" in reply.data["error"]


@pytest.mark.parametrize(
    ("url", "status", "word"),
    [
        ("ftp://example.org/a.png", 400, "must start with http"),
        ("file:///etc/passwd", 400, "must start with http"),
        ("example.org/a.png", 400, "must start with http"),
        ("http:///a.png", 400, "a host"),
        ("http://exämple.org/", 400, "a host"),
        ("http://\ud800.images.example.org/", 400, "a host"),
        ("http://example.org/\ud800", 400, "not valid"),
        ("http://example.org:port/", 400, "not valid"),
        ("http://[::1/", 400, "not valid"),
        ("http://me:secret@example.org/", 400, "password"),
        ("http://example.org/" + "a" * 2048, 400, "2,048"),
        ("http://elsewhere.org/", 403, "host not allowed: elsewhere.org"),
        ("http://example.org:22/", 403, "example.org:22"),
        ("https://example.org:80/", 403, "example.org:80"),
        ("http://images.example.org/", 403, "not allowed"),
        ("http://evilexample.org/", 403, "not allowed"),
        ("http://example.org.evil.net/", 403, "not allowed"),
        ("http://127.0.0.1/", 403, "not allowed"),
        ("http://[::ffff:127.0.0.1]/", 403, "not allowed"),
        ("http://2130706433/", 403, "not allowed"),
        ("http://a..images.example.org/", 422, "resolved"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_urls_that_are_refused(url: str, status: int, word: str) -> None:
    reply = post(app(url_hosts=HOSTS), "/predict", body_of(url), **JSON)
    assert (reply.status, word in reply.data["error"]) == (status, True), reply.data


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"\xff", b'"http://example.org"', b'{"url": 3}', b'{"url": "", "method": "PUT"}', b"[" * 8000],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_name_no_picture(body: bytes) -> None:
    reply = post(app(url_hosts=HOSTS), "/predict", body, **JSON)
    assert (reply.status, '{"url"' in reply.data["error"]) == (400, True)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (http(b"", "302 Found", "location: /other.png"), "redirects (302)"),
        (http(b"", "404 Not Found"), "404"),
        (http(b"<html>"), "holiday photo.png"),
        (http(b""), "empty"),
        (http(picture())[:-9], "incomplete"),
        (b"", "incomplete"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 99_999, "not valid HTTP"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_responses_that_are_not_pictures(answer: bytes, word: str) -> None:
    site = Site(answer)
    reply = asyncio.run(fetched(site))
    assert (reply.status, word in reply.data["error"]) == (422, True), reply.data
    assert len(site.asked) == 1


def test_a_picture_without_end_is_cut_off() -> None:
    async def more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"3e8\r\n" + bytes(1000) + b"\r\n")
            await writer.drain()

    site = Site(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", then=more)
    reply = asyncio.run(fetched(site, max_bytes=10_000))
    assert (reply.status, "10,000 bytes" in reply.data["error"]) == (413, True)


def test_a_picture_may_have_as_many_bytes_as_a_request() -> None:
    statuses = [asyncio.run(fetched(Site(http(bytes(size))), max_bytes=1000)).status for size in (1000, 1001)]
    assert statuses == [422, 413]  # zeros are no picture


def test_memory_holds_for_what_is_fetched() -> None:
    reply = asyncio.run(fetched(Site(http(bytes(5000))), max_memory=1000))
    assert (reply.status, "memory" in reply.data["error"]) == (503, True)


async def _wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side ends the connection


def test_a_host_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "TIME_SHARE", 0.001)
    reply = asyncio.run(fetched(Site(http(picture())[:-9], then=_wait), timeout=60.0))
    assert (reply.status, "not received" in reply.data["error"]) == (422, True)


def test_nothing_is_fetched_for_a_client_that_has_left() -> None:
    ended, leaves = asyncio.Event(), asyncio.Event()

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()

    site = Site(then=tell)

    async def story() -> None:
        async with site.open():
            of = app(url_hosts=(f"127.0.0.1:{site.port}",))
            body = body_of(f"http://127.0.0.1:{site.port}/")
            goes = asyncio.create_task(ask(of, "/predict", method="POST", body=body, leaves=leaves, **JSON))
            await until(lambda: len(site.asked) == 1)
            leaves.set()
            assert await goes is None
            await asyncio.wait_for(ended.wait(), 60)
        assert (of.limiter.images, of.metrics.total("abandoned_total")) == (0, 1)

    asyncio.run(story())


def test_names_of_machines_in_a_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, PUBLIC, "127.0.0.1")  # one of them is enough
    site = Site(http(picture()))
    reply = asyncio.run(fetched(site, host="localhost"))
    assert (reply.status, "private" in reply.data["error"]) == (403, True)
    assert site.asked == []


def test_hosts_that_cannot_be_found_or_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch)
    lost = post(app(url_hosts=HOSTS), "/predict", body_of("https://example.org/a.png"), **JSON)
    assert (lost.status, "resolved" in lost.data["error"]) == (422, True)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        reply = post(app(url_hosts=(place,)), "/predict", body_of(f"http://{place}/"), **JSON)
    assert (reply.status, f"{place}: the connection failed" in reply.data["error"]) == (422, True)
