"""The supervisor: owns the listening socket, starts the worker processes, and replaces those that die.

It computes nothing and does not import torch, and lives on when its log cannot be written. SIGTERM and Ctrl-C stop the
service without losing a request; SIGHUP reloads the model. When a worker dies, the requests it was computing are lost;
new connections wait in the socket's queue until its replacement is ready.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError, VitrailError
from vitrail.serve.config import BACKLOG, ServeConfig
from vitrail.serve.logs import background_logs, fill_standard_descriptors, log, take_dropped
from vitrail.serve.metrics import Metrics

if TYPE_CHECKING:
    from vitrail.serve.model import Opener

_MAX_PAUSE = 30.0  # seconds before a worker that keeps dying is started again
_POLL = 0.1  # seconds

OnReady = Callable[[str, str], None]


@dataclass(eq=False)
class _Worker:
    index: int
    process: SpawnProcess
    pipe: Connection
    started: float = field(default_factory=time.monotonic)
    ready: bool = False

    def reload(self) -> None:
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGHUP)


def serve(opener: "Opener", config: ServeConfig, *, on_ready: OnReady | None = None) -> None:
    """Serves until SIGTERM or SIGINT; calls `on_ready(url, about)` once every worker has opened the model."""
    for package in ("uvicorn", "starlette"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{package} is not installed: pip install starlette uvicorn")
    fill_standard_descriptors()
    with tempfile.TemporaryDirectory(prefix="vitrail-serve-") as folder, listen(config) as listener:
        bound = replace(config, port=listener.getsockname()[1])
        metrics = Path(folder) / "metrics"
        Metrics.create(metrics, config.workers + 1)  # the last row is the supervisor's
        with background_logs():
            _Supervisor(opener, bound, listener, metrics, on_ready).run()


def listen(config: ServeConfig) -> socket.socket:
    """A socket that listens on the config's host and port."""
    for path in (config.certificate, config.private_key):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"file not found: {path}")
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _run_worker(opener: "Opener", config: ServeConfig, **options: Any) -> None:
    """The target of a worker process; torch is imported only there."""
    from vitrail.serve.worker import run_worker  # noqa: PLC0415

    with background_logs():
        try:
            run_worker(opener, config, **options)
        except Exception:  # multiprocessing would print it, and might wait for the reader for ever
            log("error", "a worker failed", traceback=traceback.format_exc())
            sys.exit(1)


class _Supervisor:
    def __init__(
        self, opener: "Opener", config: ServeConfig, listener: socket.socket, metrics: Path, on_ready: OnReady | None
    ) -> None:
        self.opener, self.config, self.listener, self.metrics = opener, config, listener, metrics
        self.on_ready, self.counters = on_ready, Metrics.open(metrics, config.workers)
        self.workers: list[_Worker] = []
        self.stopping = self.forced = self.announced = False
        self.reload_asked = 0.0  # when
        self.crashes = 0  # in a row
        self.restarts: list[tuple[float, int]] = []  # when to start which worker again

    def run(self) -> None:
        """Starts the workers and watches them until the service is stopped."""
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        handlers = {number: signal.signal(number, self._on_signal) for number in signals}
        try:
            for index in range(self.config.workers):
                self._start(index)
            while not self.stopping:
                self._poll()
            self._drain()
        finally:
            for worker in self.workers:
                if worker.process.is_alive():
                    worker.process.kill()
                worker.process.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            self.reload_asked = time.monotonic()
            for worker in self.workers:
                if worker.ready:
                    worker.reload()
        else:
            self.forced = self.stopping and number == signal.SIGINT  # a second Ctrl-C
            self.stopping = True

    def _start(self, index: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        receiver, sender = spawn.Pipe(duplex=False)
        options = {"listener": self.listener, "metrics": self.metrics, "index": index, "pipe": sender}
        arguments = (self.opener, self.config)
        process = spawn.Process(target=_run_worker, args=arguments, kwargs=options, name=f"worker-{index}")
        with sender:
            process.start()
        self.workers.append(_Worker(index, process, receiver))

    def _restart(self, index: int) -> None:
        try:
            self._start(index)
        except OSError as error:  # no process, no memory or no file descriptor is left: later there may be
            log("error", "a worker cannot be started", error=str(error), restart_in_s=_MAX_PAUSE)
            self.restarts.append((time.monotonic() + _MAX_PAUSE, index))

    def _poll(self) -> None:
        """Reads messages from workers and replaces those that died."""
        wait([*(worker.process.sentinel for worker in self.workers)], timeout=_POLL)
        for worker in list(self.workers):
            if not worker.ready and worker.pipe.poll():
                with contextlib.suppress(EOFError, ConnectionError):  # it died
                    self._on_message(worker, *worker.pipe.recv())
            if not worker.process.is_alive():
                self._replace(worker)
        now = time.monotonic()
        due = [index for moment, index in self.restarts if moment <= now]
        self.restarts = [(moment, index) for moment, index in self.restarts if moment > now]
        for index in due:
            self._restart(index)
        if dropped := take_dropped():
            self.counters.add("dropped_log_lines_total", amount=dropped)

    def _on_message(self, worker: _Worker, event: str, text: str) -> None:
        if event == "failed":
            if not self.announced:
                raise VitrailError(text)  # at the first start the user sees it
            log("error", "a worker cannot open the model", error=text)
            return
        worker.ready = True
        if self.reload_asked > worker.started:  # it may have opened the old model
            worker.reload()
        if not self.announced and sum(one.ready for one in self.workers) == self.config.workers:
            self.announced = True
            if self.on_ready is not None:
                self.on_ready(self.config.address, text)

    def _replace(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        if not self.announced:
            raise VitrailError(f"a worker died while opening the model (exit code {worker.process.exitcode})")
        lifetime = time.monotonic() - worker.started
        self.crashes = 0 if worker.ready and lifetime > _MAX_PAUSE else self.crashes + 1
        pause = 0.0 if self.crashes <= 1 else min(_MAX_PAUSE, 0.5 * 2.0**self.crashes)
        facts = {"exit_code": worker.process.exitcode, "lifetime_s": round(lifetime, 1), "restart_in_s": pause}
        log("error", "a worker died", **facts)
        self.restarts.append((time.monotonic() + pause, worker.index))

    def _drain(self) -> None:
        """Lets every worker finish its requests; kills those that take too long."""
        self.listener.close()  # the last worker that closes its copy accepts the connections still in the queue
        for worker in self.workers:
            worker.process.terminate()
        end = time.monotonic() + self.config.drain + self.config.timeout + 10
        while any(worker.process.is_alive() for worker in self.workers) and time.monotonic() < end and not self.forced:
            wait([worker.process.sentinel for worker in self.workers if worker.process.is_alive()], timeout=_POLL)
