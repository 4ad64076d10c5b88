"""Readiness: whether a prediction works, tried on a test image that goes through the same path as a request.

It is decoded, batched, computed and answered, but not admitted: a service that refuses requests because it is
overloaded works. Each worker tries at most once in a few seconds, and only while somebody asks.
"""

import asyncio
import json

from starlette.exceptions import HTTPException

from vitrail.runs.trial import trial_picture
from vitrail.serve.batching import Overloaded
from vitrail.serve.logs import log
from vitrail.serve.model import ModelSlot
from vitrail.serve.overlay import png
from vitrail.serve.predict import Predictor, answer_of
from vitrail.serve.request import Request
from vitrail.serve.upload import File

_FRESH = 2.0  # seconds for which a result is used again
_PATIENCE = 0.5  # seconds to wait for a new one; orchestrators wait for a second


class Readiness:
    """Tries predictions, and knows why the last one failed."""

    def __init__(self, predictor: Predictor, slot: ModelSlot) -> None:
        self._predictor, self._slot, self._timeout = predictor, slot, predictor.config.timeout
        self._reason: str | None = None  # the model was tried when it was opened
        self._until = 0.0  # how long that is fresh
        self._trying: asyncio.Task[None] | None = None

    async def reason(self, request: Request) -> str | None:
        """Why predictions fail; None when they work. While a new trial takes long, the result of the last one."""
        if (self._trying is None or self._trying.done()) and asyncio.get_running_loop().time() >= self._until:
            self._trying = asyncio.create_task(self._try(request))
        if self._trying is not None:
            await asyncio.wait((self._trying,), timeout=_PATIENCE)
        return self._reason

    async def _try(self, request: Request) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._predict(request)
            reason = None
        except Overloaded:
            reason = None
        except TimeoutError:
            reason = f"a prediction was not ready within {self._timeout:g} s"
        except HTTPException as error:
            reason = f"a prediction fails: {error.detail}"
        except Exception as error:  # whatever it is, it is the reason
            reason = f"a prediction fails: {str(error) or repr(error)}"
        if reason != self._reason:
            log("info" if reason is None else "error", "ready" if reason is None else "not ready", reason=reason)
        self._reason, self._until = reason, asyncio.get_running_loop().time() + _FRESH

    async def _predict(self, request: Request) -> None:
        served = self._slot.served
        grey = trial_picture(served.engine.preprocess)[0, :1]  # 1 H W
        file = File("trial.png", await self._predictor.in_thread(png, grey))
        decoded = await self._predictor.decode(file, request, served)
        computed = await self._predictor.compute(decoded, request, served)
        json.dumps(answer_of(computed, served, top=1).to_json(), allow_nan=False)
