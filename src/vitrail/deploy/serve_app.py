"""The service as an ASGI app: who may ask, what is answered, and what is counted and logged of it."""

import asyncio
import hmac
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from vitrail import __version__
from vitrail.deploy.serve_answer import Answer, Request, Scope, Send, refusal, respond, told
from vitrail.deploy.serve_batch import Batcher, Busy, Gate
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_logs import log
from vitrail.deploy.serve_metrics import ROUTES, STATUSES, Metrics
from vitrail.deploy.serve_model import Slot
from vitrail.deploy.serve_openapi import document
from vitrail.deploy.serve_page import page_files
from vitrail.deploy.serve_predict import Predictor
from vitrail.deploy.serve_upload import Gone, Receive, Refused, discard

OPEN = ("/healthz", "/readyz")  # besides the page: what needs no key

Handler = Callable[[Request], Awaitable[Answer]]

_SENTENCES = {
    "full": "the queue is full",
    "slow": "the queue is longer than the time that a request may wait",
    "memory": "the uploads that are under way fill the memory for them",
}


class App:
    """Answers requests with the model of a slot; `draining` is set when it shall end."""

    def __init__(self, slot: Slot, config: ServeConfig, metrics: Metrics, *, supervisor: int | None = None) -> None:
        self.slot, self.config, self.metrics = slot, config, metrics
        self.supervisor = supervisor  # the process that tells all workers to reload; None: there is only this one
        self.draining = False
        self.gate = Gate(config, metrics)
        self.batcher = Batcher(self.gate)
        self.decoders = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="decoder")
        predictor = Predictor(self.gate, self.batcher, self.decoders)
        self._files = page_files(slot.served.engine)
        self._swaps: set[asyncio.Task[None]] = set()
        self._routes: dict[str, dict[str, Handler]] = {
            "/predict": {"POST": lambda request: predictor.predict(request, slot.served)},
            "/explain": {"POST": lambda request: predictor.explain(request, slot.served)},
            "/model": {"GET": self._model},
            "/metrics": {"GET": self._metrics},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/openapi.json": {"GET": self._openapi},
            "/admin/reload": {"POST": self._reload},
            **{path: {"GET": self._page} for path in self._files},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its head to the log."""
        if scope["type"] != "http":
            return
        start, request, request_id = time.monotonic(), Request(scope, receive), secrets.token_hex(8)
        try:
            answer = await self._answer(request)
        except Gone:
            self.metrics.add("abandoned_total")
            log("info", "the client left", id=request_id, route=request.path)
            return
        await respond(send, answer, request_id=request_id, closes=self.draining or answer.status in (408, 413))
        self._tell(request, answer, request_id, time.monotonic() - start)

    def close(self) -> None:
        """Ends the threads, after what is queued."""
        self.batcher.close()
        self.decoders.shutdown()

    async def _answer(self, request: Request) -> Answer:
        """The handler's answer, or the sentence that stands for it; within the time limit."""
        try:
            handler = self._handler(request)
            async with asyncio.timeout(self.config.timeout):
                return await handler(request)
        except Refused as refused:
            answer = refusal(refused)
        except Busy as busy:
            self.metrics.add("refused_total", busy.why)
            answer = _later(_SENTENCES[busy.why], busy.seconds)
        except TimeoutError:
            if request.unread:
                return refusal(Refused(408, f"the request was not whole within {self.config.timeout:g} s"))
            self.metrics.add("refused_total", "late")
            answer = _later(f"the answer was not ready within {self.config.timeout:g} s", 1)
        except Gone:
            raise
        except Exception as error:  # whatever it is, this request alone fails
            log("error", "failed", route=request.path, error=repr(error))
            answer = refusal(Refused(500, "the service failed on this request; its log says why"))
        if request.unread:
            await discard(request.receive, self.config)
        return answer

    def _handler(self, request: Request) -> Handler:
        methods = self._routes.get(request.path)
        if methods is None:
            raise Refused(404, "there is nothing here; /openapi.json tells what there is")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            raise Refused(405, f"{request.path} takes {', '.join(methods)}", allow=", ".join(methods))
        if request.path not in (*OPEN, *self._files):
            self._check_key(request)
        return methods[method]

    def _check_key(self, request: Request) -> None:
        if self.config.api_key is None:
            return
        given = request.header("x-api-key") or request.header("authorization").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), self.config.api_key.encode()):
            raise Refused(401, "the API key is missing or wrong; send it as X-API-Key", www_authenticate="Bearer")

    async def _model(self, request: Request) -> Answer:
        served = self.slot.served
        offers = served.explainer.offers if served.explainer is not None else ()
        return told(
            {
                "about": served.engine.about,
                "backend": served.engine.backend,
                "labels": list(served.engine.labels),
                "multi_label": served.engine.card.multi_label,
                "image_size": list(served.engine.image_size),
                "licence": served.engine.card.licence,
                "calibration": str(served.calibration),
                "temperature": served.calibration.temperature,
                "explain": [asdict(offer) for offer in offers],
                "generation": served.generation,
                "opened": served.opened,
                "reload_error": self.slot.error,
                "limits": {
                    "bytes": self.config.max_bytes,
                    "files": self.config.max_files,
                    "pixels": self.config.max_pixels,
                    "seconds": self.config.timeout,
                },
                "version": __version__,
            }
        )

    async def _metrics(self, request: Request) -> Answer:
        return Answer(body=self.metrics.text().encode(), kind="text/plain; version=0.0.4; charset=utf-8")

    async def _healthz(self, request: Request) -> Answer:
        return told({"status": "alive"})

    async def _readyz(self, request: Request) -> Answer:
        if self.draining:
            raise Refused(503, "the service is about to end and takes no new work", retry_after="1")
        return told({"status": "ready", "generation": self.slot.served.generation})

    async def _openapi(self, request: Request) -> Answer:
        return told(document(self.config))

    async def _page(self, request: Request) -> Answer:
        file = self._files[request.path]
        return Answer(body=file.data, kind=file.kind, headers={"cache-control": file.caching})

    async def _reload(self, request: Request) -> Answer:
        if self.config.api_key is None:
            raise Refused(403, "without an API key the model is swapped by SIGHUP to the service alone")
        if self.supervisor is not None:
            os.kill(self.supervisor, signal.SIGHUP)
        else:
            self.reload()
        return told({"status": "reloading", "generation": self.slot.served.generation}, status=202)

    def reload(self) -> None:
        """Opens the model again beside the one in use, and swaps them."""

        async def swap() -> None:
            done = await asyncio.to_thread(self.slot.reload)
            self.metrics.add("reloads_total", "done" if done else "failed")
            if done:
                log("info", "reloaded", generation=self.slot.served.generation, about=self.slot.served.engine.about)
            else:
                log("error", "reload failed", error=self.slot.error)

        task = asyncio.get_running_loop().create_task(swap())
        self._swaps.add(task)  # a task that nobody holds may vanish
        task.add_done_callback(self._swaps.discard)

    def _tell(self, request: Request, answer: Answer, request_id: str, seconds: float) -> None:
        """Counts and logs a request: no names of files, and nothing of what is in them."""
        route = "page" if request.path in self._files else request.path if request.path in ROUTES else "other"
        status = answer.status if answer.status in STATUSES else 500
        self.metrics.add("requests_total", route, str(status))
        self.metrics.observe("request_seconds", seconds, route)
        if route in ("/healthz", "/readyz", "/metrics", "page") and status < 400:
            return  # asked every few seconds by machines
        facts = {"method": request.method, "route": route, "status": answer.status, "client": request.client}
        log("info", "request", id=request_id, **facts, ms=round(1000 * seconds, 2), **answer.notes)


def _later(sentence: str, seconds: int) -> Answer:
    return refusal(Refused(503, f"{sentence}; try again in {seconds} s", retry_after=str(seconds)))
