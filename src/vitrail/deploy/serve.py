"""`serve`: a model as an HTTP service with a page, in one or several processes that are watched and replaced.

The supervisor owns the listening socket and computes nothing. SIGTERM and Ctrl-C end the service without losing a
request, SIGHUP swaps the model; a worker that dies loses what it was computing, and another takes its place while
connections wait in the socket's queue.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.deploy.serve_config import BACKLOG, ServeConfig
from vitrail.deploy.serve_logs import log
from vitrail.deploy.serve_metrics import Metrics
from vitrail.errors import ConfigError, VitrailError

if TYPE_CHECKING:
    from vitrail.deploy.serve_model import Opener

_PATIENCE = 30.0  # the longest pause before a worker that keeps dying is started again
_TICK = 0.1


@dataclass(eq=False)
class _Worker:
    row: int
    process: SpawnProcess
    hears: Connection
    born: float = field(default_factory=time.monotonic)
    ready: bool = False


def serve(opener: "Opener", config: ServeConfig, *, on_ready: Callable[[str, str], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT; `on_ready` hears the address and what the model is, once all workers have it."""
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigError("uvicorn is not installed; it comes with: pip install 'vitrail[serve]'")
    with tempfile.TemporaryDirectory(prefix="vitrail-serve-") as folder, listen(config) as listener:
        bound = replace(config, port=listener.getsockname()[1])
        numbers = Path(folder) / "metrics"
        Metrics.create(numbers, config.workers)
        _Supervisor(opener, bound, listener, numbers, on_ready).run()


def listen(config: ServeConfig) -> socket.socket:
    """A listening socket at the config's address."""
    for file in (config.certificate, config.private_key):
        if file is not None and not Path(file).is_file():
            raise ConfigError(f"there is no file {file}")
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"{config.host}:{config.port} cannot be listened at: {error.strerror or error}") from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _work(opener: "Opener", config: ServeConfig, **given: Any) -> None:
    """What a worker process runs; it alone loads torch."""
    from vitrail.deploy.serve_worker import work  # noqa: PLC0415

    work(opener, config, **given)


class _Supervisor:
    def __init__(
        self,
        opener: "Opener",
        config: ServeConfig,
        listener: socket.socket,
        numbers: Path,
        on_ready: Callable[[str, str], None] | None,
    ) -> None:
        self.opener, self.config, self.listener, self.numbers = opener, config, listener, numbers
        self.on_ready = on_ready
        self.workers: list[_Worker] = []
        self.ending = self.hurried = self.announced = False
        self.deaths = 0  # in a row
        self.waiting: list[tuple[float, int]] = []  # when to start a worker again, and for which row

    def run(self) -> None:
        """Starts the workers and watches over them until the end."""
        before = {
            number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        try:
            for row in range(self.config.workers):
                self._start(row)
            while not self.ending:
                self._look()
            self._drain()
        finally:
            for worker in self.workers:
                if worker.process.is_alive():
                    worker.process.kill()
                worker.process.join()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            for worker in self.workers:
                if worker.ready and worker.process.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.process.pid, signal.SIGHUP)
        else:
            self.hurried = self.ending and number == signal.SIGINT  # a second Ctrl-C
            self.ending = True

    def _start(self, row: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        hears, tells = spawn.Pipe(duplex=False)
        given = {"listener": self.listener, "numbers": self.numbers, "row": row, "hears": tells}
        process = spawn.Process(target=_work, args=(self.opener, self.config), kwargs=given, name=f"worker-{row}")
        process.start()
        tells.close()
        self.workers.append(_Worker(row, process, hears))

    def _look(self) -> None:
        """Hears what workers tell, and replaces those that are gone."""
        wait([*(worker.process.sentinel for worker in self.workers)], timeout=_TICK)
        for worker in list(self.workers):
            if not worker.ready and worker.hears.poll():
                with contextlib.suppress(EOFError):
                    self._told(worker, *worker.hears.recv())
            if not worker.process.is_alive():
                self._bury(worker)
        due = [row for moment, row in self.waiting if moment <= time.monotonic()]
        self.waiting = [(moment, row) for moment, row in self.waiting if moment > time.monotonic()]
        for row in due:
            self._start(row)

    def _told(self, worker: _Worker, event: str, text: str) -> None:
        if event == "failed":
            if not self.announced:
                raise VitrailError(text)  # the very first start: the person is there to read it
            log("error", "a worker cannot open the model", error=text)
            return
        worker.ready = True
        if not self.announced and sum(one.ready for one in self.workers) == self.config.workers:
            self.announced = True
            if self.on_ready is not None:
                self.on_ready(self.config.address, text)

    def _bury(self, worker: _Worker) -> None:
        worker.process.join()
        self.workers.remove(worker)
        if not self.announced:
            raise VitrailError(f"a worker died while it opened the model (exit code {worker.process.exitcode})")
        lived = time.monotonic() - worker.born
        self.deaths = 0 if worker.ready and lived > _PATIENCE else self.deaths + 1
        pause = 0.0 if self.deaths <= 1 else min(_PATIENCE, 0.5 * 2.0**self.deaths)
        log("error", "a worker died", exit_code=worker.process.exitcode, lived_s=round(lived, 1), again_in_s=pause)
        self.waiting.append((time.monotonic() + pause, worker.row))

    def _drain(self) -> None:
        """Lets every worker finish; whoever does not in time is killed."""
        self.listener.close()  # the last worker to close its own takes in who still waits
        for worker in self.workers:
            worker.process.terminate()
        end = time.monotonic() + self.config.drain + self.config.timeout + 10
        while any(worker.process.is_alive() for worker in self.workers) and time.monotonic() < end and not self.hurried:
            wait([worker.process.sentinel for worker in self.workers if worker.process.is_alive()], timeout=_TICK)
