"""Processes that a test starts: they end with the block that started them, whatever happens in it."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL

Command = Sequence[str | Path]


@contextlib.contextmanager
def started(command: Command, *, patience: float = PATIENCE, **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Starts a command in a process group of its own; at the end of the block, the whole group ends.

    Args:
        command: The program and its arguments.
        patience: Seconds that a process has after SIGTERM, and its children after it, until SIGKILL.
        options: As of `subprocess.Popen`.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        _end(process, patience)


def run(command: Command, *, timeout: float = 100.0, **options: Any) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run` with captured output, and with a time limit that also ends the children of the process."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command, **(pipes | options)) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextlib.contextmanager
def forked(target: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """A forked copy of this process that calls a function; it is killed at the end of the block."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def wait_until_gone(pids: Sequence[int], seconds: float = 20.0) -> None:
    """Waits for the end of processes that a test did not start itself; AssertionError if one is left behind."""
    until = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, f"processes are left behind: {left}"
        time.sleep(0.02)


def _end(process: "subprocess.Popen[Any]", patience: float) -> None:
    """Closes the pipes after the last process of the group is gone."""
    until = time.monotonic() + patience
    try:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        while time.monotonic() < until and _signal(process, 0):  # children that follow their parent
            time.sleep(0.01)
    finally:  # also where the wait is interrupted, by a key or the time limit of the test
        _signal(process, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def _signal(process: "subprocess.Popen[Any]", number: int) -> bool:
    """Sends a signal to the whole group; False where none of it is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
