"""Decoding in processes: a hostile picture costs itself alone, requests take turns, and pixels stay the same."""

import asyncio
import contextlib
import functools
import io
import itertools
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from PIL import Image
from support import hostile_images as hostile
from support.processes import started
from support.small_service import Brightness, Reply, app, ask, form, picture, post, until

from vitrail.data.decode import decode
from vitrail.data.preprocess import Preprocess
from vitrail.errors import BrokenImage
from vitrail.serve import decoding
from vitrail.serve.app import App
from vitrail.serve.batching import Overloaded
from vitrail.serve.config import ServeConfig
from vitrail.serve.decoding import Decoder, DecoderPool
from vitrail.serve.fork_server import fork_server
from vitrail.serve.overlay import display_whole
from vitrail.serve.predict import _fit
from vitrail.serve.upload import File

PNG = {"content_type": "image/png"}
LONG = hostile.png_of_zeros(4000, 4000)  # half a second or more


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does: at a lower priority, its other programs could starve a decoder."""
    monkeypatch.setattr(decoding, "_DEMOTE_AFTER", math.inf)


@contextmanager
def pool(**changes: Any) -> Iterator[DecoderPool]:
    made = DecoderPool(ServeConfig(timeout=60.0, **changes))
    try:
        yield made
    finally:
        made.close()


def saved(kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((90, 70), 80).convert("RGB").save(file, kind, **options)
    return file.getvalue()


def never(seconds: float) -> None:
    return None


async def normal(of: App) -> Reply:
    return await ask(of, "/predict", method="POST", body=picture(), **PNG)


@pytest.mark.parametrize("resize", ["window", "crop"])
def test_the_pixels_are_those_of_the_model(resize: str) -> None:
    files = [picture(), saved("JPEG"), saved("PNG"), saved("WEBP"), saved("GIF"), saved("TIFF"), saved("BMP")]
    preprocess = Preprocess(image_size=(32, 32), resize=resize)

    async def story(of: DecoderPool) -> None:
        for file in (*files, picture(7, size=(32, 32))):
            work = functools.partial(_fit, name="x", preprocess=preprocess, show=display_whole)
            decoded = await of.decode(File("x", file), work, owner=None)
            assert torch.equal(decoded.fitted, preprocess.fit(decode(file)[None])[0][0])
            assert decoded.shown is not None
            assert decoded.size == decode(file).shape[1:]

    with pool() as of:
        asyncio.run(story(of))


def test_a_picture_that_takes_too_long_is_an_error_of_its_own() -> None:
    of = app(decode_seconds=0.2, timeout=60.0)
    reply = post(of, "/predict", LONG, **PNG)
    assert (reply.status, "0.2 s of processor time" in reply.data["error"]) == (422, True)
    assert post(of, "/predict", picture(), **PNG).status == 200
    assert (of.limiter.images, of.limiter.bytes) == (0, 0)
    of.close()


def test_others_are_served_while_a_request_has_pictures_that_take_long() -> None:
    of = app(decode_seconds=0.3, timeout=60.0)

    async def story() -> None:
        body, headers = form(LONG, LONG, picture())
        await normal(of)
        bad = asyncio.create_task(ask(of, "/predict", method="POST", body=body, **headers))
        await until(lambda: bool(of.decoders._running))
        for _ in range(5):
            assert (await normal(of)).status == 200
        assert not bad.done()
        *late, good = (await bad).data["predictions"]
        assert all("processor time" in one["error"] for one in late)
        assert "answers" in good

    asyncio.run(story())
    of.close()


def test_a_picture_that_takes_long_makes_room_for_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_YIELD_AFTER", 0.1)
    of = app(decoders=1, timeout=60.0)

    async def story() -> tuple[Reply, Reply]:
        bad = asyncio.create_task(ask(of, "/predict", method="POST", body=LONG, **PNG))
        await until(lambda: bool(of.decoders._running))
        return await normal(of), await bad

    good, bad = asyncio.run(story())
    assert good.status == 200
    assert (bad.status, bad.headers["retry-after"]) == (503, "1")
    assert of.metrics.total("refused_total", "decoders") == 1
    assert post(of, "/predict", LONG, **PNG).status == 200  # alone it has its time
    of.close()


def test_one_decoder_is_kept_for_pictures_that_do_not_take_long(
    made: list[Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_LONG_AFTER", 0.06)
    of = app(timeout=60.0)

    async def story() -> list[Reply]:
        bad = [asyncio.create_task(ask(of, "/predict", method="POST", body=LONG, **PNG)) for _ in range(2)]
        await until(lambda: len(of.decoders._running) == 2)
        await until(lambda: len(of.decoders._queue) == 1)  # one of them begins again when the other is done
        for _ in range(3):
            assert (await normal(of)).status == 200
        assert not any(one.done() for one in bad)
        return list(await asyncio.gather(*bad))

    assert [reply.status for reply in asyncio.run(story())] == [200, 200]
    assert (of.decoders._long, of.decoders._slow, len(made) > 2) == (0, set(), True)
    of.close()


def test_after_one_that_took_long_the_others_of_its_request_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_LONG_AFTER", 0.06)
    running: list[int] = []

    async def story(of: DecoderPool) -> None:
        jobs = [of.decode(File("x", LONG), lambda pixels: running.append(of._long), owner=owner) for owner in "aabb"]
        both = [asyncio.create_task(job) for job in jobs]
        await until(lambda: of._slow == {"a", "b"})
        await until(lambda: len(of._running) == 1)
        await asyncio.gather(*both)

    with pool() as of:
        asyncio.run(story(of))
    assert running == [1, 1, 1, 1]


def test_memory_of_a_decoder_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServeConfig, "decoder_bytes", 16 << 20)
    of = app()
    reply = post(of, "/predict", hostile.png_of_zeros(2500, 2500), **PNG)
    assert (reply.status, "memory" in reply.data["error"]) == (422, True)
    assert post(of, "/predict", picture(), **PNG).status == 200
    of.close()


def test_requests_take_turns_and_none_has_all_decoders() -> None:
    order: list[str] = []

    def work(name: str, pixels: torch.Tensor) -> None:
        time.sleep(0.01)
        order.append(name)

    async def story(of: DecoderPool) -> None:
        jobs = [of.decode(File("x", picture()), functools.partial(work, "many"), owner="many") for _ in range(16)]
        many = [asyncio.create_task(job) for job in jobs]
        await until(lambda: len(order) > 0)
        await of.decode(File("x", picture()), functools.partial(work, "one"), owner="one")
        await asyncio.gather(*many)

    with pool(decoders=2) as of:
        asyncio.run(story(of))
        assert order.index("one") < 6
        order.clear()
        asyncio.run(story(of))
    with pool(decoders=1) as of:
        asyncio.run(story(of))


def test_a_client_that_leaves_ends_the_work_for_it() -> None:
    async def story(of: DecoderPool) -> float:
        start = time.monotonic()
        task = asyncio.create_task(of.decode(File("x", LONG), lambda pixels: None, owner=1))
        await until(lambda: bool(of._running))
        task.cancel()
        await of.decode(File("x", picture()), lambda pixels: None, owner=2)
        return time.monotonic() - start

    with pool(decoders=1) as of:
        asyncio.run(of.decode(File("x", picture()), lambda pixels: None, owner=1))
        assert asyncio.run(story(of)) < 2.0
        assert not of._queue


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Decoder]:
    """The decoders that are started."""
    found: list[Decoder] = []
    start: Callable[..., None] = Decoder.__init__
    monkeypatch.setattr(Decoder, "__init__", lambda self, config: (found.append(self), start(self, config))[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, threads have no priorities of their own")
def test_what_takes_long_has_a_lower_priority(made: list[Decoder], monkeypatch: pytest.MonkeyPatch) -> None:
    def priority(pixels: torch.Tensor) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    monkeypatch.setattr(decoding, "_DEMOTE_AFTER", 0.05)
    usual, found = os.getpriority(os.PRIO_PROCESS, 0), []
    with pool(decoders=1) as of:
        for file, step in ((picture(), 0.0), (hostile.png_of_zeros(2500, 2500), 0.06), (picture(), 0.0)):
            clock = itertools.count(0.0, step).__next__
            monkeypatch.setattr(decoding, "_processor_clock", lambda pid, clock=clock: clock)
            found.append(asyncio.run(of.decode(File("x", file), priority, owner=1)))
    assert found == [usual, max(usual, 10), usual]
    assert [decoder.demoted for decoder in made] == [True, False]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, a decoder ends with its channel")
@pytest.mark.parametrize("kill", ["decoder", "fork server"])
def test_processes_that_were_killed_are_replaced(kill: str, made: list[Decoder]) -> None:
    with pool() as of:
        decoded = [asyncio.run(of.decode(File("x", picture(9)), lambda pixels: pixels.clone(), owner=1))]
        os.kill(made[0].pid if kill == "decoder" else fork_server(os.getpid())._process.pid, signal.SIGKILL)
        ended = select.poll()  # a decoder dies with its fork server, which takes a moment
        ended.register(made[0]._channel, 0)
        assert ended.poll(30_000), "the decoder lives on"
        decoded += [asyncio.run(of.decode(File("x", picture(9)), lambda pixels: pixels.clone(), owner=1))]
    assert torch.equal(*decoded)
    assert len(made) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, processor times cannot be read")
def test_processor_time_of_a_process_that_has_ended_stays_as_it_was() -> None:
    program = [sys.executable, "-c", "print(sum(range(1_000_000)), flush=True); input()"]
    with started(program, stdin=-1, stdout=-1) as one:
        clock = decoding._processor_clock(one.pid)
        before = clock()
        one.stdout.readline()
        after = clock()
        one.kill()
        one.wait()
        assert 0 <= before < after == clock() < 30
    assert decoding._processor_clock(one.pid) is time.monotonic


def test_a_decoder_that_stops_answering_is_killed() -> None:
    decoder = Decoder(ServeConfig(timeout=0.15))
    os.kill(decoder.pid, signal.SIGSTOP)
    with pytest.raises(BrokenImage, match="within"):
        decoder.decode(File("x", picture()), never)
    assert decoder.pid == 0
    crashed = Decoder(ServeConfig())
    os.kill(crashed.pid, signal.SIGKILL)
    with pytest.raises(BrokenImage, match="crashes"):
        crashed.decode(File("x", picture()), never)


def answered(send: Callable[[socket.socket], None], **changes: Any) -> None:
    """Decodes with a decoder that sends something else than an answer of its own; it must be gone afterwards."""
    decoder = Decoder(ServeConfig(**changes))
    os.kill(decoder.pid, signal.SIGSTOP)
    decoder._channel.close()
    decoder._channel, theirs = socket.socketpair()
    thread = threading.Thread(target=send, args=(theirs,))
    thread.start()
    try:
        decoder.decode(File("x", picture()), never)
    finally:
        gone = decoder.pid == 0
        decoder.end(kill=True)
        thread.join()
        theirs.close()
        assert gone


def message(text: str) -> bytes:
    return struct.pack(">I", len(text.encode())) + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 2**32 - 1),
        struct.pack(">I", (64 << 10) + 1) + b"[",
        *map(
            message,
            (
                "[" * 50_000,
                '{"a":' * 10_000,
                "",
                "[]",
                "{}",
                "3",
                '{"shape": 1',
                '{"error": {}}',
                '{"error": "\\ud800"}',
                '{"error": "a", "shape": [1, 1, 1]}',
                '{"shape": null}',
                '{"shape": [1, 1]}',
                '{"shape": [1, 1, 1, 1]}',
                '{"shape": [2, 1, 1]}',
                '{"shape": [1, -1, -1]}',
                '{"shape": [1, 0, 5]}',
                '{"shape": [true, 1, 1]}',
                '{"shape": [1, 1.0, 1]}',
                '{"shape": [1, "1", 1]}',
                '{"shape": [1, 101, 100]}',
                '{"shape": [3, 1e400, 1]}',
                '{"shape": [1, %s, 1]}' % (5000 * "1"),
            ),
        ),
    ],
)
def test_a_decoder_that_sends_anything_but_an_answer_is_killed(data: bytes) -> None:
    with pytest.raises(decoding._DecoderCrashed, match="valid"):
        answered(lambda channel: channel.sendall(data), max_pixels=10_000)


def test_a_decoder_that_sends_its_answer_slowly_is_killed() -> None:
    def send_slowly(channel: socket.socket) -> None:
        with contextlib.suppress(OSError):  # until the other end is closed
            for byte in message(json.dumps({"error": 400 * "a"})):
                channel.sendall(bytes([byte]))
                time.sleep(0.01)

    with pytest.raises(BrokenImage, match="within"):
        answered(send_slowly, timeout=0.1)


def test_decoders_without_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_IDLE", 0.02)

    async def story(of: DecoderPool) -> None:
        for _ in range(2):
            assert await of.decode(File("x", picture()), len, owner=1) == 1
            await until(lambda: not of._threads)

    with pool() as of:
        asyncio.run(story(of))


def test_without_processes_the_service_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Decoder, config: ServeConfig) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Decoder, "__init__", fail)
    of = app(Brightness())
    assert post(of, "/predict", picture(), **PNG).status == 503
    with pool() as alone, pytest.raises(Overloaded):
        asyncio.run(alone.decode(File("x", picture()), len, owner=1))
    monkeypatch.undo()
    assert post(of, "/predict", picture(), **PNG).status == 200
