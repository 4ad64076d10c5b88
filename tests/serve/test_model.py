"""The slot that holds the model in use."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.small_service import Brightness, Held, until
from torch import Tensor

from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.metrics import WIDTH, Metrics
from vitrail.serve.model import ModelSlot, ServedModel


def opener(*engines: Brightness) -> Callable[[], ServedModel]:
    """Opens one after the other."""
    rest = iter(engines)
    return lambda: ServedModel(engine=next(rest))


@pytest.fixture
def held() -> Iterator[Held]:
    """An engine whose first picture does not end."""
    engine = Held()
    engine.hold()
    yield engine
    engine.go.set()


class Failing(Brightness):
    """Raises at its first picture."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        raise self.error


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, TimeoutError])
def test_a_model_that_fails_at_its_first_picture_is_not_taken(kind: type[BaseException]) -> None:
    slot = ModelSlot(opener(Brightness(), Failing(kind("out of order")), Brightness()))
    first = slot.served
    assert not asyncio.run(slot.reload())
    assert (slot.served, slot.error) == (first, "out of order")
    assert asyncio.run(slot.reload())
    assert (slot.served.generation, slot.error) == (2, None)


def test_a_reload_that_hangs_fails_and_the_next_one_works(held: Held) -> None:
    slot = ModelSlot(opener(Brightness(), held, Brightness()), max_seconds=0.05)
    first = slot.served
    assert not asyncio.run(slot.reload())
    assert slot.served is first
    assert "within 0.05 s" in str(slot.error)
    slot._max_seconds = 20.0
    assert asyncio.run(slot.reload())
    second = slot.served
    held.go.set()  # the late model is dropped
    slot._stuck[0].join(20)
    assert slot.served is second
    assert (second.generation, second.engine is held) == (2, False)


def test_reloads_that_hang_are_limited(held: Held) -> None:
    slot = ModelSlot(opener(Brightness(), held, held, held, Brightness()), max_seconds=0.02)
    before = threading.active_count()
    for word in ("within", "within", "within", "restart", "restart"):
        assert not asyncio.run(slot.reload())
        assert word in str(slot.error)
    assert threading.active_count() <= before + 3
    held.go.set()
    for thread in slot._stuck:
        thread.join(20)
    slot._max_seconds = 20.0
    assert asyncio.run(slot.reload())


def test_many_reloads_during_one_are_one_more(held: Held) -> None:
    slot = ModelSlot(opener(Brightness(), held, Brightness()))
    of = App(slot, ServeConfig(), Metrics(np.zeros((1, WIDTH)), 0))

    async def story() -> None:
        of.reload()
        await until(held.entered.is_set)
        before = threading.active_count()
        for _ in range(50):
            of.reload()
            await asyncio.sleep(0)
        assert threading.active_count() == before
        held.go.set()
        await until(lambda: slot.served.generation == 3)
        await until(lambda: of.metrics.total("reloads_total", "done") == 2)

    asyncio.run(story())
    of.close()


def test_the_end_of_a_service_does_not_wait_for_a_reload(held: Held) -> None:
    of = App(ModelSlot(opener(Brightness(), held)), ServeConfig(), Metrics(np.zeros((1, WIDTH)), 0))

    async def story() -> None:
        of.reload()
        await until(held.entered.is_set)

    start = time.monotonic()
    asyncio.run(story())
    of.close()
    assert time.monotonic() - start < 20  # the engine would wait for 60
