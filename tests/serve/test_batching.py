"""Batches over requests, and what happens when there is too much to do."""

import asyncio
import contextlib

import pytest
from support.hostile_images import png_of_zeros
from support.small_service import Brightness, Halves, Held, Reply, app, ask, form, picture, post, until

from vitrail.serve.app import App
from vitrail.serve.batching import Limiter, Overloaded

PNG = {"content_type": "image/png"}


def gather(of: App, count: int, **headers: str) -> list[Reply]:
    async def all_at_once() -> list[Reply]:
        each = (ask(of, "/predict", method="POST", body=picture(), **PNG, **headers) for _ in range(count))
        return list(await asyncio.gather(*each))

    return asyncio.run(all_at_once())


def test_requests_are_computed_together() -> None:
    engine = Held()
    of = app(engine, max_batch=8, batch_wait=0.0)
    engine.hold()

    async def story() -> list[Reply]:
        each = [asyncio.create_task(ask(of, "/predict", method="POST", body=picture(), **PNG)) for _ in range(20)]
        await until(engine.entered.is_set)
        await until(lambda: len(of.batcher._queue) >= 12)  # all but the first batch, of 8 at most
        await until(lambda: of.metrics.total("waiting_images") == 20)
        engine.go.set()
        return await asyncio.gather(*each)

    replies = asyncio.run(story())
    assert [reply.status for reply in replies] == [200] * 20
    assert sum(engine.batches) == 20
    assert engine.batches[1] == 8
    assert {reply.data["predictions"][0]["batch"] for reply in replies} == set(engine.batches)


def test_a_request_with_many_images_does_not_hold_up_another() -> None:
    engine = Held()
    of = app(engine, batch_wait=0.0)
    engine.hold()
    body, headers = form(*[picture()] * 24)

    async def story() -> list[Reply]:
        many = asyncio.create_task(ask(of, "/predict", method="POST", body=body, **headers))
        await until(lambda: len(of.batcher._queue) + engine.entered.is_set() * 2 >= 24)
        one = asyncio.create_task(ask(of, "/predict", method="POST", body=picture(), **PNG))
        await until(lambda: of.batcher._queue.owners == 2)
        of.limiter.rate = 80.0  # images per second: four take a twentieth of one
        engine.go.set()
        return [await one, await many]

    one, many = asyncio.run(story())
    assert one.data["predictions"][0]["batch"] == engine.batches[1] <= 4
    assert len(many.data["predictions"]) == 24


def test_a_single_picture_does_not_wait_for_a_batch() -> None:
    lone = app(batch_wait=60.0, timeout=10.0)  # one that waited would be told that it took too long
    assert post(lone, "/predict", picture(), **PNG).status == 200


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_nothing_is_computed_for_a_client_that_has_left(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine, halves, leaves = Held(), Halves(), asyncio.Event()
    of = app(engine, explainer=halves)
    engine.hold()

    async def story() -> Reply:
        stays = asyncio.create_task(ask(of, path, method="POST", body=picture(), **PNG))
        await until(engine.entered.is_set)
        goes = asyncio.create_task(ask(of, path, method="POST", body=picture(), leaves=leaves, **PNG))
        await until(lambda: len(of.batcher._queue) == 1)
        leaves.set()
        assert await goes is None
        assert of.limiter.images == 1
        engine.go.set()
        return await stays

    assert asyncio.run(story()).status == 200
    assert post(of, path, picture(), **PNG).status == 200
    assert engine.batches == [1, 1]
    assert len(halves.asked) == (2 if path == "/explain" else 0)
    assert (of.metrics.total("abandoned_total"), of.metrics.total("images_total")) == (1, 2)
    assert "the client disconnected" in capsys.readouterr().err


def test_a_full_queue_answers_503_at_once_and_recovers() -> None:
    of = app(Brightness(seconds=0.02), max_waiting=3, max_batch=1)
    replies = gather(of, 12)
    refused = [reply for reply in replies if reply.status == 503]
    assert len(refused) == 9
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert "full" in refused[0].data["error"]
    assert (of.limiter.images, of.limiter.bytes) == (0, 0)
    assert of.metrics.total("refused_total", "full") == 9
    assert post(of, "/predict", picture(), **PNG).status == 200


def test_a_queue_that_is_too_slow_answers_503() -> None:
    of = app(max_batch=1, max_delay=0.25)
    assert post(of, "/predict", picture(), **PNG).status == 200
    assert of.limiter.rate > 0
    of.limiter.rate = 10.0  # pictures a second
    replies = gather(of, 10)
    assert sum(reply.status == 200 for reply in replies) == 3
    assert "longer" in next(reply for reply in replies if reply.status == 503).data["error"]


def test_uploads_together_stay_within_memory() -> None:
    of = app(max_memory=3000)

    async def slow() -> list[Reply]:
        each = (ask(of, "/predict", method="POST", body=bytes(2000), chunk=500, pause=0.02, **PNG) for _ in range(4))
        return list(await asyncio.gather(*each))

    statuses = sorted(reply.status for reply in asyncio.run(slow()))
    assert statuses[-1] == 503
    assert set(statuses) <= {422, 503}  # zeros are no picture
    assert of.limiter.bytes == 0


def test_time_is_limited_for_clients_and_for_the_engine() -> None:
    slow = asyncio.run(ask(app(timeout=0.1), "/predict", method="POST", body=bytes(900), chunk=1, pause=0.05, **PNG))
    assert (slow.status, "0.1 s" in slow.data["error"]) == (408, True)
    late = post(app(Brightness(seconds=0.3), timeout=0.1), "/predict", picture(), **PNG)
    assert (late.status, late.headers["retry-after"]) == (503, "1")


def test_an_engine_that_fails_fails_one_batch_only(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Brightness()
    of = app(engine)
    engine.outputs = lambda images: 1 / 0  # type: ignore[assignment]
    assert post(of, "/predict", picture(), **PNG).status == 500
    assert "ZeroDivisionError" in capsys.readouterr().err
    del engine.outputs
    assert post(of, "/predict", picture(), **PNG).status == 200


def test_pictures_that_wait_to_be_decoded_do_not_hold_up_other_requests() -> None:
    of = app(max_delay=0.5, timeout=50.0)
    body, headers = form(*[png_of_zeros(1200, 1200)] * 12)  # half a second in all

    async def story() -> list[Reply]:
        await ask(of, "/predict", method="POST", body=picture(), **PNG)
        of.limiter.rate = 10.0  # images per second: twelve would take longer than is allowed
        many = asyncio.create_task(ask(of, "/predict", method="POST", body=body, **headers))
        await until(lambda: of.limiter.images == 12)
        of.limiter.rate = 10.0
        one = await ask(of, "/predict", method="POST", body=picture(), **PNG)
        assert not many.done()
        return [one, await many]

    assert [reply.status for reply in asyncio.run(story())] == [200, 200]
    assert (of.limiter.images, of.limiter.delay()) == (0, 0.0)


def admitted(limiter: Limiter, counts: list[int]) -> list[bool]:
    """Whether requests with so many images are admitted, one after the other; none of their images gets decoded."""
    found = []
    with contextlib.ExitStack() as requests:
        for count in counts:
            try:
                requests.enter_context(limiter.admit()).add_images(count)
            except Overloaded:
                found.append(False)
            else:
                found.append(True)
    return found


def test_requests_with_many_images_leave_room_for_small_ones() -> None:
    limiter = app().limiter
    assert admitted(limiter, [64, 64, 64, 64]) == [True, True, False, False]
    assert admitted(limiter, [64, 64, 34, 64, 5]) == [True, True, True, False, True]
    descending = [64, 64, 34, 17, 9, 5, 3, 2]  # as many as an attacker gets
    assert admitted(limiter, descending + [1] * 50) == [True] * 58
    assert limiter.images == 0


def test_only_as_many_images_of_others_are_ahead_as_one_has_itself() -> None:
    limiter = app(max_delay=1.0).limiter
    limiter.rate = 20.0
    with limiter.admit() as large:
        large.add_images(40)
        large.undecoded = 0
        assert (limiter.delay(), limiter.delay(10), limiter.delay(64)) == (0.1, 0.5, 2.0)
        assert admitted(limiter, [1, 10]) == [True, True]
        assert admitted(limiter, [64]) == [False]


def test_small_requests_are_served_while_a_few_have_many_images_that_take_long() -> None:
    of = app(max_waiting=16, decode_seconds=0.5, timeout=60.0)
    body, headers = form(*[png_of_zeros(1600, 1600)] * 4)

    async def story() -> tuple[list[Reply], list[Reply]]:
        await ask(of, "/predict", method="POST", body=picture(), **PNG)
        many = [asyncio.create_task(ask(of, "/predict", method="POST", body=body, **headers)) for _ in range(4)]
        await until(lambda: of.limiter.images >= 8)
        small = [await ask(of, "/predict", method="POST", body=picture(), **PNG) for _ in range(3)]
        return small, await asyncio.gather(*many)

    small, many = asyncio.run(story())
    assert [reply.status for reply in small] == [200] * 3
    assert 503 in [reply.status for reply in many]
    of.close()
