"""/readyz is 200 where a prediction works, and a reload to a model that computes NaN is refused."""

import asyncio

import numpy as np
import pytest
from support.small_service import Brightness, Halves, Held, app, ask, picture, post
from torch import Tensor

from vitrail.serve import readiness
from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.metrics import WIDTH, Metrics
from vitrail.serve.model import ModelSlot, ServedModel


class Sick(Brightness):
    """Works until it is `ill`."""

    ill = False

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        found = super().outputs(images)
        return {"logits": found["logits"] * float("nan")} if self.ill else found


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH", 0.0)


def ready(of: App) -> tuple[int, str]:
    reply = asyncio.run(ask(of, "/readyz"))
    return reply.status, reply.body.decode()


def test_a_model_that_starts_to_fail(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Sick()
    of = app(engine, explainer=Halves())
    assert ready(of)[0] == 200
    engine.ill = True
    status, text = ready(of)
    assert status == 503
    assert "finite" in text
    assert "not ready" in capsys.readouterr().err
    for path in ("/predict", "/predict?display=1", "/explain"):
        for accept in ("*/*", "image/png"):
            assert post(of, path, picture(), content_type="image/png", accept=accept).status == 500, path
    engine.ill = False
    assert ready(of)[0] == 200


def test_the_result_is_used_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH", 60.0)
    engine = Sick()
    of = app(engine)
    engine.batches.clear()

    async def story() -> None:
        for _ in range(20):
            assert (await ask(of, "/readyz")).status == 200

    asyncio.run(story())
    assert engine.batches == [1]


def test_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PATIENCE", 0.01)
    engine = Held()
    of = app(engine, timeout=0.5)
    engine.hold()

    async def story() -> None:
        assert (await ask(of, "/readyz")).status == 200, "the last result: this does not wait for the engine"
        await asyncio.sleep(0.6)
        late = await ask(of, "/readyz")
        assert late.status == 503
        assert "0.5 s" in late.data["error"]
        engine.go.set()

    try:
        asyncio.run(story())
    finally:
        engine.go.set()


def test_a_reload_to_a_model_that_computes_nan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    ill = Sick()
    ill.ill = True
    engines = iter([Brightness(), ill, Brightness()])
    slot = ModelSlot(lambda: ServedModel(engine=next(engines)))
    of = App(slot, ServeConfig(), Metrics(np.zeros((1, WIDTH)), 0))

    async def story() -> None:
        of.reload()
        while of.metrics.total("reloads_total", "failed") == 0:
            await asyncio.sleep(0.001)
        model = (await ask(of, "/model")).data
        assert model["generation"] == 1
        assert "finite" in model["reload_error"]
        sent = {"method": "POST", "body": picture(), "content_type": "image/png"}
        assert (await ask(of, "/predict", **sent)).status == 200
        of.reload()
        while of.metrics.total("reloads_total", "done") == 0:
            await asyncio.sleep(0.001)
        assert (await ask(of, "/model")).data["reload_error"] is None

    asyncio.run(story())
    assert "finite" in capsys.readouterr().err
