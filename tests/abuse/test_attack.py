"""A service under a short attack on loopback; the long one is `python benchmarks/abuse.py service`."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.abused.attack import Answer, Tally, attack, generate, requests
from support.abused.service import AttackPlan, Served, Watcher, faults, memory, quantile, tree
from support.processes import forked, started
from support.small_service import send, service

UPLOADS = 120


@pytest.fixture
def pipe() -> Any:
    """Requests of a seed, as they come from the process that makes them."""
    source, sink = multiprocessing.get_context("fork").Pipe(duplex=False)
    with forked(generate, sink, 3, UPLOADS, 0.0):
        sink.close()
        yield source


def test_a_service_outlives_an_attack(tmp_path: Path, pipe: Any) -> None:
    with service(tmp_path) as served:
        host, port = served.address.removeprefix("http://").rsplit(":", 1)
        workers = served.workers()
        sending = attack((host, int(port)), pipe, rate=0, connections=8, until=time.monotonic() + 60, linger=0.3)
        tally = asyncio.run(sending)
        assert tally.total == UPLOADS
        assert tally.odd() == {}
        assert served.workers() == workers
        assert send(served.address, "/readyz").status == 200


def test_requests_follow_from_the_seed() -> None:
    first, again = list(requests(1, 40, heavy=0.0)), list(requests(1, 40, heavy=0.0))
    assert first == again
    assert {sent.kind for sent in first} >= {"picture", "form", "grammar"}
    assert first != list(requests(2, 40, heavy=0.0))


def test_no_answer_is_a_fault_of_a_whole_request_alone() -> None:
    tally = Tally()
    for kind, status in (("form", 0), ("grammar", 0), ("picture", 500), ("picture", 503), ("picture", 200)):
        tally.add(kind, Answer(status, 0.1))
    assert tally.odd() == {"form: no answer": 1, "picture: 500": 1}
    assert tally.by_status() == {"no answer": 2, "200": 1, "500": 1, "503": 1}


def test_memory_is_that_of_all_processes_below() -> None:
    with started(["sleep", "60"]) as process:
        assert process.pid in tree(os.getpid())
        assert all(share <= peak + 1 for share, peak in memory(process.pid).values())
        with Watcher(process.pid) as watcher:
            watcher.look()
        assert watcher.totals
        assert list(watcher.peaks) == [process.pid]


GOOD = {
    "crashes": 0, "odd": {}, "ready_after": True, "exit": 0, "log_errors": {},
    "normal_alone": {"p99_ms": 10.0, "statuses": {"200": 9}},
    "normal_attacked": {"p99_ms": 29.0, "statuses": {"200": 9, "503": 1}},
    "memory_mb": {"before": 400, "peak": 900},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, None),
        ({"crashes": 1}, "replaced"),
        ({"odd": {"form: 500": 1}}, "500"),
        ({"exit": 1}, "exit"),
        ({"normal_attacked": {"p99_ms": 31.0, "statuses": {}}}, "p99"),
        ({"normal_attacked": {"p99_ms": 1.0, "statuses": {"no answer": 1}}}, "no answer"),
        ({"memory_mb": {"before": 400, "peak": 1100}}, "memory"),
        ({"log_errors": {"failed": 1}}, "log"),
    ],
)
def test_every_fault_is_told(change: dict[str, Any], word: str | None) -> None:
    found = faults(GOOD | change, AttackPlan(memory=1000))
    assert [word in sentence for sentence in found] == ([] if word is None else [True])


def test_errors_and_foreign_lines_of_a_log_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"level": "info", "event": "a"}\n{"level": "error", "event": "failed", "error": "x"}\nTIFF: y\n')
    assert Served(("", 0), None, log).errors() == {"failed: x": 1, "not JSON, such as TIFF: y": 1}


def test_quantiles() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([1.0, 2.0, 3.0], 0.99) == 3.0
