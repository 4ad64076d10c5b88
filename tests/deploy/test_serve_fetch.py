"""Pictures by address: from which hosts, how much, for how long, and what is said where it cannot be."""

import asyncio
import contextlib
import ipaddress
import json
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from small_service import Halves, Reply, app, ask, picture, post, until

from vitrail.deploy import serve_fetch, serve_predict
from vitrail.deploy.serve_app import App
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_hosts import Host, is_public
from vitrail.errors import ConfigError

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
    assert (of.gate.images, of.gate.bytes) == (0, 0)
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


def test_a_picture_by_its_address(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_explanation_by_address() -> None:
    reply = asyncio.run(fetched(Site(http(picture(255))), explainer=Halves(), way="/explain?target=dark"))
    assert (reply.status, reply.data["target"]["label"]) == (200, "dark")


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
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    unknown = asyncio.run(fetched(Site(http(picture()), tls=tls)))
    assert unknown.status == 422
    assert re.search(r"cannot be trusted: self.signed certificate", unknown.data["error"])
    monkeypatch.setattr(serve_fetch, "_trust", lambda: ssl.create_default_context(cafile=certificate))
    assert asyncio.run(fetched(Site(http(picture()), tls=tls))).status == 200


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_nothing_is_fetched_unless_the_service_is_told_to(path: str) -> None:
    reply = post(app(explainer=Halves()), path, body_of("http://127.0.0.1:1/a.png"), **JSON)
    assert reply.status == 415
    assert reply.data["error"] == (
        "pictures are not fetched by address here; send the file, or start the service with --allow-urls HOSTS"
    )


@pytest.mark.parametrize(
    ("url", "status", "sentence"),
    [
        ("ftp://example.org/a.png", 400, "begins with http:// or https://"),
        ("file:///etc/passwd", 400, "begins with http:// or https://"),
        ("example.org/a.png", 400, "begins with http:// or https://"),
        ("http:///a.png", 400, "and a host"),
        ("http://exämple.org/", 400, "and a host"),
        ("http://\ud800.images.example.org/", 400, "and a host"),
        ("http://example.org/\ud800", 400, "cannot be read"),
        ("http://example.org:port/", 400, "cannot be read"),
        ("http://[::1/", 400, "cannot be read"),
        ("http://me:secret@example.org/", 400, "a user or a password"),
        ("http://example.org/" + "a" * 2048, 400, "more than 2,048 characters"),
        ("http://elsewhere.org/", 403, "not fetched from elsewhere.org; it is no host of --allow-urls"),
        ("http://example.org:22/", 403, "not fetched from example.org:22;"),
        ("https://example.org:80/", 403, "not fetched from example.org:80;"),
        ("http://images.example.org/", 403, "it is no host"),
        ("http://evilexample.org/", 403, "it is no host"),
        ("http://example.org.evil.net/", 403, "it is no host"),
        ("http://127.0.0.1/", 403, "it is no host"),
        ("http://[::ffff:127.0.0.1]/", 403, "it is no host"),
        ("http://2130706433/", 403, "it is no host"),
        ("http://a..images.example.org/", 422, "cannot be found"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_addresses_that_are_refused(url: str, status: int, sentence: str) -> None:
    reply = post(app(url_hosts=HOSTS), "/predict", body_of(url), **JSON)
    assert (reply.status, sentence in reply.data["error"]) == (status, True), reply.data


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"\xff", b'"http://example.org"', b'{"url": 3}', b'{"url": "", "method": "PUT"}', b"[" * 8000],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_name_no_picture(body: bytes) -> None:
    reply = post(app(url_hosts=HOSTS), "/predict", body, **JSON)
    assert (reply.status, reply.data["error"]) == (400, 'the body is not what names a picture: {"url": "https://…"}')


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (http(b"", "302 Found", "location: /other.png"), "sends elsewhere (302), which is not followed"),
        (http(b"", "404 Not Found"), "answers 404, and no picture"),
        (http(b"<html>"), "holiday photo.png cannot be decoded: it is an HTML page"),
        (http(b""), "the file is empty"),
        (http(picture())[:-9], "broke off"),
        (b"", "broke off"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 99_999, "does not speak HTTP"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_answers_that_are_no_picture(answer: bytes, sentence: str) -> None:
    site = Site(answer)
    reply = asyncio.run(fetched(site))
    assert (reply.status, sentence in reply.data["error"]) == (422, True), reply.data
    assert len(site.asked) == 1


def test_a_picture_without_end_is_cut_off() -> None:
    async def more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"3e8\r\n" + bytes(1000) + b"\r\n")
            await writer.drain()

    site = Site(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", then=more)
    reply = asyncio.run(fetched(site, max_bytes=10_000))
    assert (reply.status, reply.data["error"]) == (
        413,
        "the picture has more than 10,000 bytes, the most that is taken",
    )


def test_a_picture_may_have_as_many_bytes_as_a_request() -> None:
    statuses = [asyncio.run(fetched(Site(http(bytes(size))), max_bytes=1000)).status for size in (1000, 1001)]
    assert statuses == [422, 413]  # zeros are no picture


def test_memory_holds_for_what_is_fetched() -> None:
    reply = asyncio.run(fetched(Site(http(bytes(5000))), max_memory=1000))
    assert (reply.status, "fill the memory" in reply.data["error"]) == (503, True)


async def _wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side ends the connection


def test_a_host_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_predict, "SHARE", 0.001)
    reply = asyncio.run(fetched(Site(http(picture())[:-9], then=_wait), timeout=60.0))
    assert (reply.status, "did not send the picture within" in reply.data["error"]) == (422, True)


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
        assert (of.gate.images, of.metrics.total("abandoned_total")) == (0, 1)

    asyncio.run(story())


def test_names_of_machines_in_a_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, PUBLIC, "127.0.0.1")  # one of them is enough
    site = Site(http(picture()))
    reply = asyncio.run(fetched(site, host="localhost"))
    assert (reply.status, "is a machine of a private network" in reply.data["error"]) == (403, True)
    assert site.asked == []


def test_hosts_that_cannot_be_found_or_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch)
    lost = post(app(url_hosts=HOSTS), "/predict", body_of("https://example.org/a.png"), **JSON)
    assert (lost.status, lost.data["error"]) == (422, "example.org cannot be found")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        reply = post(app(url_hosts=(place,)), "/predict", body_of(f"http://{place}/"), **JSON)
    assert (reply.status, reply.data["error"]) == (422, f"{place} cannot be reached")


# --- hosts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "public"),
    [
        (PUBLIC, True),
        ("2606:2800:21f:cb07::1", True),
        ("64:ff9b::5db8:d70e", True),  # the first, as NAT64 writes it
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::1", False),
        ("2002:a00:1::1", False),
        ("2001:db8::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) == public


def test_hosts_with_and_without_a_port() -> None:
    assert Host.parse("Example.ORG") == Host("example.org")
    assert Host.parse("*.example.org:8000") == Host("example.org", below=True, port=8000)
    assert Host.parse("[2001:DB8:0::1]:80") == Host("2001:db8::1", port=80)
    assert Host.parse("example.org").holds("example.org", 443, "https")
    assert not Host.parse("example.org").holds("example.org", 80, "https")
    assert Host.parse("*.example.org").holds("a.b.example.org", 80, "http")
    assert not Host.parse("*.example.org").holds("example.org", 80, "http")


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*.org",
        "*.127.0.0.1",
        "http://example.org",
        "a b",
        "",
        "[::1",
        "[1.2]",
        "example.org:0",
        "example.org:70000",
    ],
)
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"to fetch pictures from; name hosts such as example\.org"):
        ServeConfig(url_hosts=(text,))


def test_openapi_tells_of_addresses_where_they_are_taken() -> None:
    def described(**changes: Any) -> tuple[Any, Any]:
        told = asyncio.run(ask(app(**changes), "/openapi.json")).data["paths"]["/predict"]["post"]
        return told["requestBody"]["content"].get("application/json"), told["responses"].get("403")

    assert described() == (None, None)
    taken, refused = described(url_hosts=HOSTS)
    assert taken["schema"]["required"] == ["url"]
    assert refused is not None
