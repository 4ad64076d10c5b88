"""Limits on connections: their number, slow heads, and clients that disconnect."""

import asyncio
import contextlib
import socket

import pytest
from support.listening import Address, listening
from support.small_service import Held, app, picture, until

from vitrail.serve import connections
from vitrail.serve.config import ServeConfig


def request(path: str, body: bytes = b"") -> bytes:
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png"
    return f"{head}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def answered(address: Address, path: str = "/healthz", body: bytes = b"") -> bytes:
    """All that comes back to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.closing(writer):
        writer.write(request(path, body))
        return await reader.read()


def test_too_many_connections() -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(60),
            listening(app(), ServeConfig(max_connections=2), 60.0) as (address, connections),
        ):
            silent = [await asyncio.open_connection(*address) for _ in range(2)]
            reader, third = await asyncio.open_connection(*address)
            third.write(request("/predict", bytes(1 << 20)))  # it is heard out, so that the answer is not lost
            assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1")
            for writer in (third, *(writer for _, writer in silent)):
                writer.close()
            await until(lambda: not connections)
            assert (await answered(address)).startswith(b"HTTP/1.1 200")

    asyncio.run(story())


def test_an_idle_connection_makes_room() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(max_connections=1), 60.0) as (address, _):
            reader, idle = await asyncio.open_connection(*address)
            idle.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert (await answered(address)).startswith(b"HTTP/1.1 200")
            await reader.read()  # to its end
            idle.close()

    asyncio.run(story())


def test_slow_heads() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(), 0.1) as (address, _):
            (slow, writer), (silent, other) = [await asyncio.open_connection(*address) for _ in range(2)]
            while not slow.at_eof() and slow.exception() is None:  # a byte at a time, and never an end
                writer.write(b"x")
                await asyncio.sleep(0.02)
            assert await silent.read() == b""  # one that says nothing at all
            writer.close()
            other.close()

    asyncio.run(story())


def test_a_response_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.2)

    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(), 60.0) as (address, open_connections):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, address)
                many = 3000 * b"GET /page.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(client, many)
                await until(lambda: not open_connections)
            assert (await answered(address)).startswith(b"HTTP/1.1 200")

    asyncio.run(story())


def test_a_closed_connection_takes_its_work_with_it() -> None:
    engine = Held()
    of = app(engine)
    engine.hold()

    async def story() -> None:
        async with asyncio.timeout(60), listening(of, ServeConfig(), 60.0) as (address, _):
            stays = asyncio.create_task(answered(address, "/predict", picture()))
            await until(engine.entered.is_set)
            _, leaving = await asyncio.open_connection(*address)
            leaving.write(request("/predict", picture()))
            await until(lambda: len(of.batcher._queue) == 1)
            leaving.close()
            await until(lambda: of.metrics.total("abandoned_total") == 1)
            engine.go.set()
            assert (await stays).startswith(b"HTTP/1.1 200")
            assert (await answered(address, "/predict", picture())).startswith(b"HTTP/1.1 200")

    asyncio.run(story())
    assert engine.batches == [1, 1]


def test_a_client_that_is_gone_already_is_refused_without_an_error() -> None:
    class Gone:
        closed = False

        def can_write_eof(self) -> bool:
            return True

        def write(self, data: bytes) -> None:
            assert data.startswith(b"HTTP/1.1 503")

        def write_eof(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

        def close(self) -> None:
            self.closed = True

    async def story() -> None:
        connection = connections.LimitedConnection()
        connection.transport, connection.loop = Gone(), asyncio.get_running_loop()
        connection._refuse(connections._REFUSED)
        await until(lambda: connection.transport.closed)

    asyncio.run(story())
