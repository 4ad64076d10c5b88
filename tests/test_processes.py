"""A process of a test ends with its block, with its children, whatever happens."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import run, started

DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=False)
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(number: int) -> bool:
    """Whether a process runs; one that ended and that nobody asks about does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ended(*numbers: int) -> bool:
    end = time.monotonic() + 10
    while any(map(alive, numbers)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(alive, numbers))


@pytest.mark.parametrize("outcome", [RuntimeError("it broke"), pytest.skip.Exception("no browser")])
def test_a_block_that_is_left_early_ends_the_whole_group(outcome: BaseException) -> None:
    numbers = []
    with (
        pytest.raises(type(outcome)),
        started([sys.executable, "-c", DEAF], patience=0.2, stdout=subprocess.PIPE, text=True) as process,
    ):
        numbers += [process.pid, int(process.stdout.readline())]
        assert all(map(alive, numbers))
        raise outcome
    assert ended(*numbers)
    assert process.stdout.closed


def test_a_program_has_time_to_end_by_itself() -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True); signal.pause()"
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
    assert process.returncode == 7


def test_a_run_has_a_time_limit_that_holds_for_children() -> None:
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run(["bash", "-c", "sleep 600 & sleep 600"], timeout=0.2)
    assert time.monotonic() - begun < 8
    assert run([sys.executable, "-c", "print('done')"]).stdout == "done\n"


def test_no_test_starts_a_process_by_itself() -> None:
    tests = Path(__file__).parent
    own = {Path(__file__), tests / "support" / "processes.py"}
    own |= {tests / "abuse" / "test_loaders.py"}  # where a command must be noticed
    starts = re.compile(
        r"(.*\.)?(Popen|Process)|subprocess\.(run|call|check_\w+|getoutput)|os\.(system|popen|spawn\w+)"
    )
    found = [
        f"{file}:{node.lineno}"
        for file in set(tests.rglob("*.py")) - own
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and starts.fullmatch(ast.unparse(node.func))
    ]
    assert not found, "start processes with support.processes, which ends them"
