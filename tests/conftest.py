"""Settings that must stand before torch is imported, and determinism for every test."""

import gc
import os
import sys
from collections.abc import Iterator

# oneDNN's AMX path dies with SIGILL on some cloud machines that announce AMX but lack it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Threads that wait for work sleep: beside other tests they would spend the time on nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from support.browser import needs_browser
from support.browser_session import Session, session

# Many tests start a process: without bytecode on disk, each of them would compile the whole library again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Files with tests of many seconds: they begin first, so that no worker waits at the end for another's last one.
# Those of tasks share their runs within a worker.
LONG = (
    "test_distributed.py", "test_docs.py", "test_feeds.py", "test_kills.py", "test_learns.py", "test_supervisor.py",
    "test_task_contract.py", "test_task_tools.py",
)  # fmt: skip
SLOW = 1200  # seconds that a test marked as slow may take; pyproject.toml has the limit of all others


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(needs_browser)  # a mark is read before the first fixture starts anything
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))


def pytest_collection_finish() -> None:
    # Hundreds of thousands of objects of torch and its peers stay to the end: to look through them for garbage, over
    # and over, took up to an eighth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="module")
def browser() -> Iterator[Session]:
    """A browser with one tab, for all tests of a file."""
    with session() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _start(monkeypatch: pytest.MonkeyPatch) -> None:
    # A run that names nothing gets a small new model and not packaged weights; tests of the measured table name it.
    monkeypatch.setattr("vitrail.training.first_try.measured", tuple)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two workers on two cores: more threads, left by an engine, would wait for each other
