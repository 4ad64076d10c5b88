"""Logs that can be written nowhere: lines are dropped and counted, and nothing waits or fails."""

import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import started
from support.small_service import TESTS, Load, picture, send, service

from vitrail.serve.logs import BackgroundStream, background_logs, log, take_dropped


@pytest.fixture(autouse=True)
def _none_dropped() -> Iterator[None]:
    take_dropped()
    yield
    take_dropped()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # the smallest
    yield reader, writer
    for end in (reader, writer):
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(end)


def test_a_stream_that_is_closed_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as closed:
        pass
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        log("info", "lost")
        assert take_dropped() == 1


def test_text_that_is_not_valid_unicode(pipe: tuple[int, int]) -> None:
    stream = BackgroundStream(pipe[1])
    stream.write("\udcff\n")
    stream.drain(10)
    assert os.read(pipe[0], 100) == b"\\udcff\n"


def test_a_message_that_does_not_fit_its_arguments(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    with os.fdopen(os.dup(pipe[1]), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with background_logs():
            record = logging.makeLogRecord({"msg": "%d pictures", "args": ("no number",)})
            logging.getLogger().handlers[-1].handle(record)  # alone: pytest's own handlers raise
    assert take_dropped() == 1


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full to write to")
    with Path("/dev/full").open("w") as full:
        stream = BackgroundStream(full.fileno())
        monkeypatch.setattr(sys, "stderr", stream)
        for _ in range(5):
            log("info", "lost")
        stream.drain(10)
        assert take_dropped() == 5


def test_a_reader_that_does_not_read_and_then_goes(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream, line = BackgroundStream(writer, max_bytes=100_000), "x" * 999 + "\n"
    start = time.monotonic()
    for _ in range(300):
        stream.write(line)
    stream.drain(0.01)
    assert time.monotonic() - start < 5
    assert 190 <= take_dropped() <= 210  # what fits into the queue and the pipe is kept
    assert os.read(reader, 1000) == line.encode()
    os.close(reader)
    stream.drain(10)
    assert take_dropped() >= 90  # the rest: nobody can ever read it


def test_a_line_after_one_that_was_cut(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream = BackgroundStream(writer)
    stream._partial_line = True  # as when the disk became full in the middle of a line
    stream.write("whole\n")
    stream.drain(10)
    assert os.read(reader, 100) == b"\nwhole\n"


def test_libraries_log_in_the_same_format(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    with os.fdopen(os.dup(writer), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with background_logs():
            try:
                raise ValueError("a cause")
            except ValueError:
                logging.getLogger("uvicorn.error").exception("from a library")
        assert sys.stderr is stream
    entry = json.loads(os.read(reader, 4096).splitlines()[0])
    assert (entry["event"], entry["level"]) == ("from a library", "error")
    assert "a cause" in entry["error"]


@pytest.mark.parametrize("kind", ["full", "gone", "closed"])
def test_a_supervisor_without_a_log_replaces_a_worker(kind: str, pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    command = [sys.executable, "-m", "support.idle_worker"]
    if kind == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full to write to")
    if kind == "closed":
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    with Path("/dev/full" if kind == "full" else os.devnull).open("w") as file:
        stderr = pipe[1] if kind == "gone" else file.fileno()
        options = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "cwd": TESTS}
        with started(command, **options) as process:
            first = int(process.stdout.readline())
            assert process.stdout.readline() == "serving\n"
            os.kill(first, signal.SIGKILL)
            assert int(process.stdout.readline()) != first
            assert process.poll() is None


@pytest.mark.slow
def test_a_service_whose_log_nobody_reads(tmp_path: Path, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with service(tmp_path, workers=2, stderr=writer) as running:
        with Load(running.address, clients=2) as load:
            while load.outcomes.count("200") < 100:  # more than the pipe holds
                time.sleep(0.01)
            os.close(writer)
            os.close(reader)  # now every write fails
            victim, other = running.workers()
            os.kill(victim, signal.SIGKILL)
            end = time.monotonic() + 60
            while len(set(running.workers()) - {victim, other}) < 1:
                assert time.monotonic() < end
                assert running.process.poll() is None, "the supervisor lives"
                time.sleep(0.05)
            before = load.outcomes.count("200")
            while load.outcomes.count("200") < before + 50:
                assert time.monotonic() < end
                time.sleep(0.01)
        assert load.outcomes.count("lost") <= 2, "those in flight on the killed worker"
        assert set(load.outcomes) <= {"200", "lost"}
        assert send(running.address, "/predict", picture(), content_type="image/png").status == 200
        time.sleep(1.1)  # workers count once a second
        text = send(running.address, "/metrics").body.decode()
        (dropped,) = [line for line in text.splitlines() if line.startswith("vitrail_dropped_log_lines_total")]
        assert float(dropped.split()[1]) > 0
