"""A service under attack: crashes, statuses, memory, and how a normal client fares meanwhile."""

import contextlib
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from support.abused.attack import Tally, behave, generate, send_attack
from support.processes import forked, started

MAX_RATIO = 3.0  # of the normal client's 99th percentile under attack to that without
# MB beyond what the service had before: bodies, and two decoders of 32 + 3 x 16 MB + 23 bytes x 25 million pixels.
STATED = 256 + 2 * (32 + 3 * 16 + 23 * 25)
SETTLE = 8.0  # seconds after the attack, before memory is read for the last time


class AttackPlan(NamedTuple):
    """How a service is attacked."""

    uploads: int = 50_000
    minutes: float = 20.0
    seed: int = 0
    connections: int = 8
    rate: float = 0.0  # uploads a second; 0: evenly over nine tenths of the time
    heavy: float = 0.002  # share of files that cost a decoder much
    slow: int = 20  # clients that send a byte a second
    pause: float = 0.05  # of the normal client between two requests
    alone: float = 60.0  # seconds in which the normal client is measured without an attack
    memory: float | None = None  # MB that all processes together may have; None: what docs/serve.md states

    @property
    def pace(self) -> float:
        """Uploads a second."""
        return self.rate or self.uploads / (0.9 * 60 * self.minutes)


def tree(process: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return found


def memory(process: int) -> dict[int, tuple[float, float]]:
    """MB of each process of a tree: its share of what is shared, and its own peak."""
    found = {}
    for one in tree(process):
        with contextlib.suppress(OSError, AttributeError):
            pss = re.search(r"^Pss: +(\d+)", Path(f"/proc/{one}/smaps_rollup").read_text(), re.MULTILINE)
            peak = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{one}/status").read_text(), re.MULTILINE)
            found[one] = (int(pss[1]) / 1024, int(peak[1]) / 1024)
    return found


@dataclass
class Watcher:
    """Reads the memory of a service every second."""

    process: int
    totals: list[float] = field(default_factory=list)  # MB of all processes together
    peaks: dict[int, float] = field(default_factory=dict)  # MB of each that ever was
    _stop: threading.Event = field(default_factory=threading.Event)

    def look(self) -> float:
        """The total now."""
        found = memory(self.process)
        self.peaks |= {one: peak for one, (_, peak) in found.items()}
        self.totals.append(sum(share for share, _ in found.values()))
        return self.totals[-1]

    def __enter__(self) -> "Watcher":
        self.look()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self.look()


class Served(NamedTuple):
    """A service that this script started."""

    address: tuple[str, int]
    process: "subprocess.Popen[str]"
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        """A status and a text."""
        host, port = self.address
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """A number of /metrics; 0 where there is none."""
        found = re.findall(rf"^vitrail_{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return sum(map(float, found))

    def errors(self) -> dict[str, int]:
        """Lines of the log that are errors, by their event; and those that are not JSON."""
        counted: dict[str, int] = {}
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                key = f"{entry['event']}: {entry.get('error', '')}"[:120] if entry["level"] == "error" else None
            except (ValueError, KeyError, TypeError):
                key = "not JSON, such as " + line[:60]
                key = next((other for other in counted if other.startswith("not JSON")), key)
            if key is not None:
                counted[key] = counted.get(key, 0) + 1
        return counted


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[Served]:
    """`vitrail serve MODEL` on a free port of this machine."""
    command = [sys.executable, "-m", "vitrail", "serve", model, "--port", "0", *options]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            log.open("w") as file,
            started(command, stdout=subprocess.PIPE, stderr=file, text=True, patience=30) as process,
        ):
            lines = [process.stdout.readline(), process.stdout.readline()]
            if not lines[1]:
                raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")
            host, port = lines[1].split()[0].removeprefix("http://").rsplit(":", 1)
            yield Served((host, int(port)), process, log)


class Normal:
    """A normal client, in a process of its own, for as long as the block lasts."""

    def __init__(self, served: Served, picture: bytes, pause: float) -> None:
        self.told: list[tuple[float, int, float]] = []
        self._mine, theirs = multiprocessing.Pipe()
        self._forked = forked(behave, theirs, served.address, picture, pause)

    def _read(self, pipe: Connection, process: BaseProcess) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                if pipe.poll(0.2):
                    self.told.append(pipe.recv())
                elif not process.is_alive():
                    return

    def __enter__(self) -> "Normal":
        self._process = self._forked.__enter__()
        self._reader = threading.Thread(target=self._read, args=(self._mine, self._process), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._mine.send("end")
        self._process.join(60)
        self._forked.__exit__(None, None, None)
        self._reader.join()

    def between(self, start: float, stop: float) -> dict[str, Any]:
        """Percentiles of what was answered, and the statuses."""
        part = [(status, seconds) for at, status, seconds in self.told if start <= at <= stop]
        good = sorted(seconds for status, seconds in part if status == 200)
        statuses = Tally()
        for status, _ in part:
            statuses.statuses["normal", status] += 1
        marks = {f"p{100 * share:g}_ms": round(1000 * quantile(good, share), 2) for share in (0.5, 0.9, 0.99, 1.0)}
        return {"requests": len(part), "statuses": statuses.by_status(), **marks}


def quantile(ordered: list[float], share: float) -> float:
    """Of sorted numbers; 0 where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def send_all(served: Served, plan: AttackPlan) -> tuple[Tally, Tally]:
    """The attack itself, in two processes that leave the cores to the others: one makes requests, one sends them."""
    fork = multiprocessing.get_context("fork")
    (source, sink), (told, teller) = fork.Pipe(duplex=False), fork.Pipe(duplex=False)
    seconds = 60 * plan.minutes
    with forked(generate, sink, plan.seed, plan.uploads, plan.heavy):
        sink.close()
        how = (plan.pace, plan.connections, plan.slow, seconds)
        with forked(send_attack, teller, served.address, source, *how):
            teller.close()
            if not told.poll(2 * seconds + 60):
                raise RuntimeError("the attack does not end")
            return told.recv()


def attacked_service(model: str, plan: AttackPlan, picture: bytes, *options: str) -> dict[str, Any]:
    """Attacks a service, and says what came of it."""
    with serving(model, *options) as served, Normal(served, picture, plan.pause) as normal:
        time.sleep(2.0)  # the first answers warm everything up
        begin = time.monotonic()
        time.sleep(plan.alone)
        with Watcher(served.process.pid) as watcher:
            before, attacked = watcher.totals[0], time.monotonic()
            sent, slowly = send_all(served, plan)
            ended = time.monotonic()
            during = max(watcher.totals)
            time.sleep(SETTLE)
            after = watcher.look()
        starts, ready = served.metric("worker_starts_total"), served.get("/readyz")[0]
        answered, _ = served.get("/model")
        result = {
            "uploads": sent.total,
            "minutes": round((ended - attacked) / 60, 2),
            "statuses": sent.by_status(),
            "odd": sent.odd(),
            "slowest_s": round(sent.slowest, 2),
            "slow_clients": slowly.by_status(),
            "crashes": int(starts) - 1 if "--workers" not in options else int(starts),
            "ready_after": ready == 200 and answered == 200,
            "normal_alone": normal.between(begin, attacked),
            "normal_attacked": normal.between(attacked, ended),
            "memory_mb": {
                "before": round(before), "peak": round(during), "after": round(after),
                "largest_process_peak": round(max(watcher.peaks.values())),
            },
        }  # fmt: skip
        served.process.send_signal(signal.SIGTERM)
        result["exit"] = served.process.wait(60)
        result["log_errors"] = served.errors()
    return result | {"faults": faults(result, plan)}


def faults(result: dict[str, Any], plan: AttackPlan) -> list[str]:
    """What is not as it must be, one sentence each."""
    alone, attacked, used = result["normal_alone"], result["normal_attacked"], result["memory_mb"]
    found = []
    if result["crashes"]:
        found.append(f"workers were replaced {result['crashes']} times")
    if result["odd"]:
        found.append(f"answers that must not be: {result['odd']}")
    if not result["ready_after"] or result["exit"] != 0:
        found.append(f"ready afterwards: {result['ready_after']}, exit code {result['exit']}")
    if attacked["p99_ms"] > MAX_RATIO * alone["p99_ms"]:
        found.append(f"the normal client's p99 went from {alone['p99_ms']} to {attacked['p99_ms']} ms")
    if wrong := {status: count for status, count in attacked["statuses"].items() if status not in ("200", "503")}:
        found.append(f"the normal client got {wrong}")
    if used["peak"] > (bound := plan.memory or used["before"] + STATED):
        found.append(f"memory reached {used['peak']} MB; the bound is {bound:g} MB")
    if result["log_errors"]:
        found.append(f"errors in the log: {result['log_errors']}")
    return found
