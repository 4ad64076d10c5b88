"""One process of a service: it opens the model, answers until it is told to end, and then loses nobody."""

import asyncio
import ctypes
import gc
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.deploy.serve_app import App
from vitrail.deploy.serve_config import BACKLOG, ServeConfig
from vitrail.deploy.serve_http import REST_SECONDS, patient_protocol
from vitrail.deploy.serve_logs import log
from vitrail.deploy.serve_metrics import Metrics
from vitrail.deploy.serve_model import Opener, Slot
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    import uvicorn

_IDLE = 1.0  # seconds that a connection without a request is kept after the listener has closed
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KEPT = 16 << 20  # bytes that memory may grow by before the allocator is asked to give some back
_ARENAS, _M_ARENA_MAX = 2, -8  # heaps of glibc, which else gives every thread one, each with holes of its own
_BUSY = 30.0  # seconds between two such requests under load: a batch in the works has to fetch it all again
_LOOK = 1.0  # seconds between two looks at memory and at the supervisor


def work(
    opener: Opener, config: ServeConfig, *, listener: socket.socket, numbers: Path, row: int, hears: Connection
) -> None:
    """The life of a worker process; it tells `hears` ("ready", about) or ("failed", why)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a model to swap
    supervisor = os.getppid()
    _few_arenas()
    try:
        slot = Slot(opener)
    except (VitrailError, OSError) as error:
        hears.send(("failed", str(error)))
        return
    metrics = Metrics.open(numbers, row)
    metrics.add("worker_starts_total")
    app = App(slot, config, metrics, supervisor=supervisor)
    hears.send(("ready", slot.served.engine.about))
    try:
        asyncio.run(_serve(app, config, listener, supervisor))
    finally:
        app.close()


async def _serve(app: App, config: ServeConfig, listener: socket.socket, supervisor: int) -> None:
    server = make_server(app, config)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    loop.add_signal_handler(signal.SIGTERM, _ender(server))
    watch = asyncio.create_task(_watch(app, server, supervisor))
    await server._serve(sockets=[listener])  # `serve` would take the signals for itself
    watch.cancel()
    log("info", "ended")


def make_server(app: App, config: ServeConfig) -> "uvicorn.Server":
    """An uvicorn server for an app, which at its end drains instead of closing."""
    import uvicorn  # noqa: PLC0415  (an extra)

    settings = uvicorn.Config(
        app,
        http=patient_protocol(config),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=1,  # connections accepted at a time: more, and one worker would take all that wait
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=REST_SECONDS,
        timeout_graceful_shutdown=int(config.timeout) + 5,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.private_key,
    )

    class Draining(uvicorn.Server):
        """Goes on accepting for a while, takes in whoever stands in the queue, and closes only then."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Starts to accept; the socket's queue keeps its length."""
            await super().startup(sockets)
            for listener in sockets or []:
                listener.listen(BACKLOG)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """No request is lost: every answer from now on says `Connection: close`."""
            app.draining = True
            log("info", "draining", waiting=app.gate.images)
            await asyncio.sleep(config.drain)
            late = [client for listener in sockets or [] for client in _last_ones(listener)]
            for server in self.servers:
                server.close()
            loop = asyncio.get_running_loop()
            for client in late:
                await loop.connect_accepted_socket(self._protocol, client, ssl=self.config.ssl)
            end = loop.time() + _IDLE
            while self.server_state.connections and loop.time() < end:
                await asyncio.sleep(0.02)
            await super().shutdown(sockets)

        def _protocol(self) -> asyncio.Protocol:
            make: Any = self.config.http_protocol_class
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    return Draining(settings)


def _last_ones(listener: socket.socket) -> list[socket.socket]:
    """Whoever has connected but was not accepted yet; closing the listener would cut them off."""
    clients = []
    try:
        while True:
            client, _ = listener.accept()
            client.setblocking(False)
            clients.append(client)
    except BlockingIOError:
        return clients


def _ender(server: "uvicorn.Server") -> Callable[[], None]:
    def end() -> None:
        server.should_exit = True

    return end


async def _watch(app: App, server: "uvicorn.Server", supervisor: int) -> None:
    """Measures memory, gives back what the allocator keeps, and ends a worker whose supervisor is gone."""
    mark, due = _resident(), 0.0
    while True:
        resting, now = app.gate.images == 0, asyncio.get_running_loop().time()
        if _resident() > mark + _KEPT and (resting or now > due):
            await asyncio.to_thread(_trim)
            mark, due = max(mark, _resident()) if resting else mark, now + _BUSY
        app.metrics.put("resident_memory_bytes", _resident())
        if os.getppid() != supervisor:
            log("error", "the supervisor is gone")
            server.should_exit = True
        await asyncio.sleep(_LOOK)


def _resident() -> int:
    """Bytes of memory in use; 0 where the system does not tell."""
    try:
        return _PAGE * int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0


def _few_arenas() -> None:
    if (option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        option(_M_ARENA_MAX, _ARENAS)


def _trim() -> None:
    """Frees what rings of references hold, and lets glibc return it: large pictures leave holes in its arenas."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
