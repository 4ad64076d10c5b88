"""Slow uploads: they disturb nobody, end early, and go first when memory is needed."""

import asyncio
from typing import Any

import pytest
from support.listening import listening
from support.small_service import Reply, app, ask, picture, until

from vitrail.serve import upload_rate
from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.upload_rate import UploadRate

PNG = {"content_type": "image/png"}


def slow(of: App, body: bytes, **pace: Any) -> "asyncio.Task[Reply]":
    return asyncio.create_task(ask(of, "/predict", method="POST", body=body, **pace, **PNG))


async def normal(of: App) -> Reply:
    return await ask(of, "/predict", method="POST", body=picture(), **PNG)


def test_sixty_uploads_of_a_byte_a_second_delay_no_other_request() -> None:
    of = app(max_delay=0.5, max_waiting=8)

    async def story() -> list[Reply]:
        await normal(of)
        of.limiter.rate = 10.0  # images per second: sixty that counted would wait for six
        uploads = [slow(of, bytes(100), chunk=1, pause=1.0) for _ in range(60)]
        await asyncio.sleep(0.05)
        assert of.limiter.images == 0
        replies = [await normal(of) for _ in range(10)]
        for upload in uploads:
            upload.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        return replies

    assert [reply.status for reply in asyncio.run(story())] == [200] * 10
    assert (of.limiter.images, of.limiter.bytes) == (0, 0)


def test_a_body_must_arrive_at_the_least_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_rate, "WINDOW", 0.2)

    async def story(min_rate: int) -> Reply:
        return await slow(app(min_rate=min_rate), picture(), chunk=2, pause=0.02)  # 100 bytes per second at most

    reply = asyncio.run(story(5000))
    assert (reply.status, "5,000 bytes" in reply.data["error"]) == (408, True)
    assert reply.headers["connection"] == "close"
    assert asyncio.run(story(0)).status == 200
    assert asyncio.run(story(10)).status == 200


def test_the_slowest_upload_goes_first_when_memory_is_needed() -> None:
    of = app(max_memory=3000)

    async def story() -> tuple[Reply, list[Reply]]:
        stalled = slow(of, bytes(2500), chunk=2400, pause=0.5)  # 2,400 bytes at once, then nothing for a while
        await until(lambda: of.limiter.bytes >= 2400)
        (reservation,) = of.limiter._requests
        reservation.upload._rate._last -= 10.0  # as if it had rested for longer
        steady = slow(of, picture() + bytes(300), chunk=20, pause=0.001)
        await until(lambda: of.limiter.bytes > 2400)
        quick = [await ask(of, "/predict", method="POST", body=picture() + bytes(1000), **PNG) for _ in range(3)]
        return await stalled, [await steady, *quick]

    dropped, served = asyncio.run(story())
    assert (dropped.status, dropped.headers["connection"]) == (503, "close")
    assert "memory" in dropped.data["error"]
    assert [reply.status for reply in served] == [200] * 4
    assert of.limiter.bytes == 0


def test_slow_uploads_make_room_for_new_connections() -> None:
    head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\nconnection: close\r\n"
    whole = f"{head}content-length: {len(picture())}\r\n\r\n".encode() + picture()

    async def story() -> None:
        config = ServeConfig(max_connections=4)
        async with asyncio.timeout(20), listening(app(), config, 60.0) as (address, known):
            clients = [await asyncio.open_connection(*address) for _ in range(4)]
            for _, writer in clients:
                writer.write(f"{head}content-length: 900\r\n\r\n".encode())
            await until(lambda: len(known) == 4 and all(one.cycle is not None for one in known))
            for one in known:
                one._made -= 10.0  # as if they had been there, and rested, for longer
                one._rate._last -= 10.0
            for _ in range(6):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(whole)
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
            assert len(known) >= 3  # one of them was closed, and its place was enough
            for _, writer in clients:
                writer.close()

    asyncio.run(story())


def test_the_rate_is_that_of_the_last_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock = [100.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
        upload = UploadRate(1000)
        async with upload.timeout:
            for _ in range(100):  # 10,000 bytes per second
                clock[0] += 0.05
                upload.add(500)
            assert upload.rate == pytest.approx(10_000, rel=0.1)
            assert upload.timeout.when() == pytest.approx(110.0)  # enough for this window: the next one counts
            clock[0] = 107.0
            assert upload.rate == pytest.approx(0, abs=200)
            upload.add(5000)
            assert upload.timeout.when() == pytest.approx(115.0)
            clock[0] = 111.0
            upload.add(4000)
            assert upload.timeout.when() == pytest.approx(115.0)

    asyncio.run(story())
