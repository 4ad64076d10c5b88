"""The service as an ASGI app: routes, API key, time limit, errors, metrics and logs.

Requests and responses are Starlette's. Paths have no parameters, so the routes are one table; errors, time limits and
metrics apply to every route alike, so they are here rather than in a stack of middleware.
"""

import asyncio
import hmac
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from vitrail import __version__
from vitrail.serve.batching import Batcher, Limiter, Overloaded
from vitrail.serve.config import FORMATS, ServeConfig
from vitrail.serve.decoding import DecoderPool
from vitrail.serve.explain import ExplainHandler
from vitrail.serve.host_header import AllowedHosts
from vitrail.serve.logs import log
from vitrail.serve.metrics import ROUTES, STATUSES, Metrics
from vitrail.serve.model import ModelSlot
from vitrail.serve.openapi import document
from vitrail.serve.page_files import page_files
from vitrail.serve.predict import Predictor
from vitrail.serve.readiness import Readiness
from vitrail.serve.request import Request

PUBLIC = ("/healthz", "/readyz")  # besides the page: needs no API key
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

Handler = Callable[[Request], Awaitable[Response]]

_OVERLOADED = {
    "full": "the queue is full",
    "slow": "the queue is longer than a request may wait",
    "memory": "the uploads in progress use all memory reserved for them",
    "decoders": "decoding the image takes too long while other requests wait",
}


class App:
    """Answers requests with the model in a slot; `draining` is set when the service stops."""

    def __init__(
        self, slot: ModelSlot, config: ServeConfig, metrics: Metrics, *, supervisor: int | None = None
    ) -> None:
        self.slot, self.config, self.metrics = slot, config, metrics
        self._hosts = AllowedHosts(config.host, config.allowed_hosts)
        self.supervisor = supervisor  # the process that tells all workers to reload; None: this is the only one
        self.draining = False
        self.limiter = Limiter(config, metrics)
        self.batcher = Batcher(self.limiter)
        self.decoders = DecoderPool(config)
        self._threads = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="drawing")
        predictor = Predictor(self.limiter, self.batcher, self.decoders, self._threads)
        self._explainer = ExplainHandler(predictor)
        self._readiness = Readiness(predictor, slot)
        self._files = page_files(slot.served.outputs)
        self._reload_asked = False
        self._reloading: asyncio.Task[None] | None = None
        self.routes: dict[str, dict[str, Handler]] = {
            "/predict": {"POST": lambda request: predictor.predict(request, slot.served)},
            "/explain": {"POST": lambda request: self._explainer.explain(request, slot.served)},
            "/model": {"GET": self._model},
            "/metrics": {"GET": self._metrics},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/openapi.json": {"GET": self._openapi},
            "/admin/reload": {"POST": self._reload},
            **{path: {"GET": self._page} for path in self._files},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its head to the log line."""
        if scope["type"] != "http":
            return
        start, request, request_id = time.monotonic(), Request(scope, receive), secrets.token_hex(8)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            self.metrics.add("abandoned_total")
            log("info", "the client disconnected", id=request_id, route=scope["path"])
            return
        for name, value in (HEADERS | {"x-request-id": request_id}).items():
            response.headers.setdefault(name, value)
        if self.draining or request.slow or response.status_code in (408, 413):
            response.headers["connection"] = "close"
        await response(scope, receive, send)
        self._record(request, response, request_id, time.monotonic() - start)

    def close(self) -> None:
        """Stops the threads and decoders, after what is queued."""
        self.batcher.close()
        self.decoders.close()
        self._threads.shutdown()
        self._explainer.close()

    async def _respond(self, request: Request) -> Response:
        """The handler's response or an error, within the time limit."""
        try:
            handler = self._handler(request)
            async with asyncio.timeout(self.config.timeout):
                return await handler(request)
        except HTTPException as error:
            response = _error(error.status_code, error.detail, error.headers)
        except Overloaded as error:
            self.metrics.add("refused_total", error.reason)
            response = _try_again(_OVERLOADED[error.reason], error.retry_after)
        except TimeoutError:
            if request.unread:
                return _error(408, f"the request body was not received within {self.config.timeout:g} s")
            self.metrics.add("refused_total", "timeout")
            response = _try_again(f"the answer was not ready within {self.config.timeout:g} s", 1)
        except ClientDisconnect:
            raise
        except Exception as error:  # whatever it is, only this request fails
            log("error", "failed", route=request.scope["path"], error=repr(error))
            response = _error(500, "internal error; see the log of the service")
        if request.unread and not request.slow:
            await request.discard(self.config)
        return response

    def _handler(self, request: Request) -> Handler:
        self._check_host(request)
        path, methods = request.scope["path"], self.routes.get(request.scope["path"])
        if methods is None:
            raise HTTPException(404, "not found; see /openapi.json")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join(methods)
            raise HTTPException(405, f"method not allowed: {path} takes {allowed}", {"allow": allowed})
        if path not in (*PUBLIC, *self._files):
            self._check_key(request)
        return methods[method]

    def _check_host(self, request: Request) -> None:
        name, local = request.headers.get("host"), (request.scope.get("server") or (None,))[0]
        if not self._hosts.allows(name, local):
            text = f"requests to the host {str(name)[:80]!r} are not allowed; start the service with --allow-host NAME"
            raise HTTPException(421, text)

    def _check_key(self, request: Request) -> None:
        if self.config.api_key is None:
            return
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), self.config.api_key.encode()):
            raise HTTPException(401, "missing or wrong API key; send it as X-API-Key", {"www-authenticate": "Bearer"})

    async def _model(self, request: Request) -> Response:
        served = self.slot.served
        engine, explainer = served.engine, served.explainer
        fields = ("method", "targeted", "layers", "heads")
        methods = [] if explainer is None else explainer.methods
        return JSONResponse(
            {
                "about": engine.about,
                "task": engine.task.config.kind,
                "outputs": served.outputs,
                "calibration": engine.task.calibration(),
                "state": engine.task.state(),
                "backend": engine.backend,
                "image_size": engine.preprocess.image_size,
                "licence": engine.card.licence,
                "explain": [{name: getattr(method, name) for name in fields} for method in methods],
                "generation": served.generation,
                "opened": served.opened,
                "reload_error": self.slot.error,
                "limits": self._limits(),
                "version": __version__,
            }
        )

    def _limits(self) -> dict[str, Any]:
        config = self.config
        names = ("decoders", "decode_seconds", "min_rate", "max_waiting", "max_connections")
        limits: dict[str, Any] = {"bytes": config.max_bytes, "files": config.max_files, "pixels": config.max_pixels}
        limits |= {"seconds": config.timeout, "decoder_bytes": config.decoder_bytes, "formats": list(FORMATS)}
        return limits | {name.removeprefix("max_"): getattr(config, name) for name in names}

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _readyz(self, request: Request) -> Response:
        if self.draining:
            raise HTTPException(503, "the service is stopping", {"retry-after": "1"})
        if reason := await self._readiness.reason(request):
            raise HTTPException(503, f"not ready: {reason}", {"retry-after": "5"})
        return JSONResponse({"status": "ready", "generation": self.slot.served.generation})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document(self.config, self.slot.served.engine.task.answer_schema()))

    async def _page(self, request: Request) -> Response:
        file = self._files[request.scope["path"]]
        return Response(file.data, media_type=file.media_type, headers={"cache-control": "no-cache"})

    async def _reload(self, request: Request) -> Response:
        if self.config.api_key is None:
            raise HTTPException(403, "reloading over HTTP needs an API key; without one, send SIGHUP to the service")
        if self.supervisor is not None:
            os.kill(self.supervisor, signal.SIGHUP)
        else:
            self.reload()
        return JSONResponse({"status": "reloading", "generation": self.slot.served.generation}, 202)

    def reload(self) -> None:
        """Opens the model again beside the one in use, then swaps them; once more, if asked while it does so."""
        self._reload_asked = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._swap())

    async def _swap(self) -> None:
        while self._reload_asked:
            self._reload_asked = False
            done = await self.slot.reload()
            self.metrics.add("reloads_total", "done" if done else "failed")
            if done:
                log("info", "reloaded", generation=self.slot.served.generation, about=self.slot.served.engine.about)
            else:
                log("error", "reload failed", error=self.slot.error)

    def _record(self, request: Request, response: Response, request_id: str, seconds: float) -> None:
        """Counts and logs a request, without file names or contents."""
        path, status = request.scope["path"], response.status_code
        route = "page" if path in self._files else path if path in ROUTES else "other"
        self.metrics.add("requests_total", route, str(status if status in STATUSES else 500))
        self.metrics.observe("request_seconds", seconds, route)
        if route in ("/healthz", "/readyz", "/metrics", "page") and status < 400:
            return  # machines poll these every few seconds
        client = request.client.host if request.client else ""
        facts = {"method": request.method, "route": route, "status": status, "client": client}
        log("info", "request", id=request_id, **facts, ms=round(1000 * seconds, 2), **request.notes)


def _error(status: int, text: str, headers: Any = None) -> Response:
    return JSONResponse({"error": text}, status, headers)


def _try_again(text: str, seconds: int) -> Response:
    return _error(503, f"{text}; try again in {seconds} s", {"retry-after": str(seconds)})
