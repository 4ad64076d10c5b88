"""Runs cases in forked processes: each must end in time, within memory, without a signal, and write nothing outside.

A child works through many seeds and tells when it begins and ends each; where it dies or hangs, another goes on after
the case that did it.
"""

import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from support.abused.loaders import Loader
from vitrail.errors import Notice

SECONDS, MEGABYTES = 5.0, 1_500
MAX_SENTENCE, MAX_LINES = 10_000, 8  # of an error; what a file says may be repeated in it
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
MOVES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")


class Outcome(NamedTuple):
    """What became of a case: "read" or "refused" as it should, or what went wrong."""

    loader: str
    seed: int
    result: str
    text: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0  # above what the process had before

    @property
    def good(self) -> bool:
        """Whether it was read, or refused in a sentence."""
        return self.result in ("read", "refused")


def attempt(loader: Loader, seed: int, folder: Path, *, reach: list[str] | None = None) -> tuple[str, str]:
    """One case in this process: its result and the text of its error; `reach` fills while the loader runs."""
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir(parents=True)
    loader.write(case, random.Random(seed))
    if reach is not None:
        reach.clear()  # of what was written just now
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # what is said to a user is no fault
            loader.load(case)
    except loader.refusals as error:
        return judge(str(getattr(error, "detail", error)))
    except Exception as error:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
        return "traceback", f"{type(error).__name__}: {str(error)[:200]}{where}"
    return "read", ""


def judge(text: str) -> tuple[str, str]:
    """Whether the text of an error is a sentence."""
    if not text.strip() or len(text) > MAX_SENTENCE or "Traceback" in text or text.count("\n") >= MAX_LINES:
        return "not a sentence", f"{len(text)} characters: {text[:300]!r}"
    return "refused", text


def confined(
    loader: Loader, seeds: Sequence[int], folder: Path, *, seconds: float = SECONDS, megabytes: int = MEGABYTES
) -> Iterator[Outcome]:
    """The outcomes of cases, each within limits."""
    loader.prepare()  # before the fork: every child has it
    left = list(seeds)
    while left:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(told)
            _work(loader, left, folder, tell, megabytes)
        os.close(tell)
        with os.fdopen(told) as pipe:
            for outcome in _followed(loader, child, pipe, len(left), seconds):
                yield outcome
                left.remove(outcome.seed)


def _work(loader: Loader, seeds: Sequence[int], folder: Path, tell: int, megabytes: int) -> None:
    """The child: never returns."""
    silent, loud = os.open(os.devnull, os.O_RDWR), os.dup(2)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    faulthandler.disable()  # whoever forked may have set it up to write elsewhere
    try:
        folder = folder.resolve()
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        os.environ |= dict.fromkeys(("TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), str(folder / "tmp"))
        os.chdir(folder)
        room = _status("VmSize") + (megabytes << 10)  # kB
        resource.setrlimit(resource.RLIMIT_AS, (room << 10, room << 10))
        reach = _watch((folder / "case", folder / "tmp", Path("/dev/null"), Path("/dev/shm"), Path("/proc/self")))
        known = {"case", "tmp"}
        with os.fdopen(tell, "w", buffering=1) as pipe:
            for seed in seeds:
                print(json.dumps({"begin": seed}), file=pipe)
                Path("/proc/self/clear_refs").write_text("5")
                before, start = _status("VmRSS"), time.monotonic()
                result, text = attempt(loader, seed, folder, reach=reach)
                spent, grown = time.monotonic() - start, (_status("VmHWM") - before) / 1024
                if reach:
                    result, text = "reached out", "; ".join(reach)[:300]
                elif left := {item.name for item in folder.iterdir()} - known:
                    result, text = "reached out", f"left {', '.join(left)}"
                    known |= left
                elif grown > megabytes:
                    result = "memory"
                print(json.dumps({"end": [seed, result, text, spent, grown]}), file=pipe)
    except BaseException as error:
        os.write(loud, f"{loader.name}: the child failed: {error!r}\n".encode())
        os._exit(70)
    os._exit(0)


def _watch(allowed: Sequence[Path]) -> list[str]:
    """A list that fills with what the process does outside of these paths."""
    reached: list[str] = []
    inside = tuple(str(path) for path in allowed)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            reached.append(f"{event} {arguments!r}"[:200])
        elif (event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & WRITING) or (
            event in MOVES and isinstance(arguments[0], str | bytes)
        ):
            _note(event, arguments[0])

    def _note(event: str, path: str | bytes) -> None:
        full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  (a hook must be quick)
        if not full.startswith(inside) and "__pycache__" not in full:
            reached.append(f"{event} {full}")

    sys.addaudithook(hook)
    return reached


def _status(field: str) -> int:
    """A number of this process in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0


def _followed(loader: Loader, child: int, pipe: IO[str], expected: int, seconds: float) -> Iterator[Outcome]:
    """The outcomes that a child tells, and that of the case which ended it."""
    begun: int | None = None
    ready = select.poll()
    ready.register(pipe, select.POLLIN | select.POLLHUP)
    text, why = "", ""
    while not why:
        if not ready.poll(1000 * (seconds if begun is not None else 60.0)):
            os.kill(child, signal.SIGKILL)
            why = f"took more than {seconds:g} s"
            break
        if not (read := os.read(pipe.fileno(), 1 << 16).decode()):
            break
        *lines, text = (text + read).split("\n")
        for line in lines:
            told = json.loads(line)
            if "begin" in told:
                begun = told["begin"]
                continue
            begun = None
            yield Outcome(loader.name, *told["end"])
    _, status = os.waitpid(child, 0)
    if begun is not None:
        code = os.waitstatus_to_exitcode(status)
        died = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        yield Outcome(loader.name, begun, "hung" if why else "died", why or died)
    elif why:
        raise RuntimeError(f"{loader.name}: a child did not begin its case")
