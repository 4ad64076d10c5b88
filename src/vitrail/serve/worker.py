"""A worker process: opens the model, serves requests, and on SIGTERM finishes those that it has accepted."""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError
from vitrail.serve.app import App
from vitrail.serve.config import BACKLOG, ServeConfig
from vitrail.serve.connections import KEEP_ALIVE_SECONDS, limited_protocol
from vitrail.serve.logs import log, take_dropped
from vitrail.serve.metrics import Metrics
from vitrail.serve.model import ModelSlot, Opener

if TYPE_CHECKING:
    import uvicorn

_IDLE = 1.0  # seconds that an idle connection is kept after the listener has closed
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
_GROWTH = 16 << 20  # bytes of growth after which free memory is returned to the system
_ARENAS, _M_ARENA_MAX = 2, -8  # heaps of glibc: by default every thread gets its own, each with its own holes
_TRIM_PAUSE = 30.0  # seconds between two trims under load: a running batch has to allocate all of it again
_WATCH = 1.0  # seconds between two checks of memory and supervisor


def run_worker(
    opener: Opener, config: ServeConfig, *, listener: socket.socket, metrics: Path, index: int, pipe: Connection
) -> None:
    """Runs a worker until it is stopped; sends ("ready", about) or ("failed", reason) to the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the supervisor decides
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a model to reload
    supervisor = os.getppid()
    _limit_arenas()
    try:
        slot = ModelSlot(opener)
    except Exception as error:  # whatever a damaged file or an engine raises
        known = isinstance(error, VitrailError | OSError)
        if not known:
            log("error", "the model cannot be opened", traceback=traceback.format_exc())
        pipe.send(("failed", str(error) if known else f"the model cannot be opened: {error!r}"))
        return
    app = App(slot, config, Metrics.open(metrics, index), supervisor=supervisor)
    _freeze()
    try:
        asyncio.run(_serve(app, config, listener, pipe))
    finally:
        app.close()


async def _serve(app: App, config: ServeConfig, listener: socket.socket, pipe: Connection) -> None:
    server = make_server(app, config)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    loop.add_signal_handler(signal.SIGTERM, _stopper(server))
    app.metrics.add("worker_starts_total")
    pipe.send(("ready", app.slot.served.engine.about))  # from now on it can be told to reload
    watch = asyncio.create_task(_watch(app, server))
    await server._serve(sockets=[listener])  # `serve` would install its own signal handlers
    watch.cancel()
    log("info", "stopped")


def make_server(app: App, config: ServeConfig) -> "uvicorn.Server":
    """A uvicorn server that drains before it closes."""
    import uvicorn  # noqa: PLC0415  (an extra)

    settings = uvicorn.Config(
        app,
        http=limited_protocol(config, app.metrics),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=1,  # connections accepted at a time: with more, one worker would take all that wait
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(config.timeout) + 5,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.private_key,
    )

    class DrainingServer(uvicorn.Server):
        """Accepts connections a little longer, then those still in the queue, and only then closes."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Starts to accept; restores the length of the socket's queue."""
            await super().startup(sockets)
            for listener in sockets or []:
                listener.listen(BACKLOG)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Loses no request: every response from now on has `Connection: close`."""
            app.draining = True
            log("info", "draining", waiting=app.limiter.images)
            await asyncio.sleep(config.drain)
            queued = [client for listener in sockets or [] for client in _accept_queued(listener)]
            for server in self.servers:
                server.close()
            loop = asyncio.get_running_loop()
            for client in queued:
                await loop.connect_accepted_socket(self._protocol, client, ssl=self.config.ssl)
            end = loop.time() + _IDLE
            while self.server_state.connections and loop.time() < end:
                await asyncio.sleep(0.02)
            await super().shutdown(sockets)

        def _protocol(self) -> asyncio.Protocol:
            make: Any = self.config.http_protocol_class
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    return DrainingServer(settings)


def _accept_queued(listener: socket.socket) -> list[socket.socket]:
    """Connections that were made but not accepted yet; closing the listener would reset them."""
    clients = []
    try:
        while True:
            client, _ = listener.accept()
            client.setblocking(False)
            clients.append(client)
    except BlockingIOError:
        return clients


def _stopper(server: "uvicorn.Server") -> Callable[[], None]:
    def stop() -> None:
        server.should_exit = True

    return stop


async def _watch(app: App, server: "uvicorn.Server") -> None:
    """Measures memory, returns free memory to the system, and stops a worker whose supervisor is gone."""
    mark, next_trim, generation = _resident(), 0.0, app.slot.served.generation
    while True:
        if app.slot.served.generation != generation:  # a model was swapped
            generation = app.slot.served.generation
            _freeze()
        idle, now = app.limiter.images == 0, asyncio.get_running_loop().time()
        if _resident() > mark + _GROWTH and (idle or now > next_trim):
            await asyncio.to_thread(_trim)
            mark, next_trim = max(mark, _resident()) if idle else mark, now + _TRIM_PAUSE
        app.metrics.set("resident_memory_bytes", _resident())
        app.metrics.add("dropped_log_lines_total", amount=take_dropped())
        if os.getppid() != app.supervisor:
            log("error", "the supervisor is gone")
            server.should_exit = True
        await asyncio.sleep(_WATCH)


def _resident() -> int:
    """Resident memory in bytes; 0 where /proc does not exist."""
    try:
        return _PAGE_SIZE * int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0


def _limit_arenas() -> None:
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def _freeze() -> None:
    """Exempts the objects that exist from garbage collection.

    To look through the 300,000 of torch takes 0.2 s, in which no request is served; and Python does so now and then.
    """
    gc.unfreeze()  # those of a model that is gone
    gc.collect()
    gc.freeze()


def _trim() -> None:
    """Collects reference cycles and lets glibc return free memory: large images leave holes in its arenas."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
