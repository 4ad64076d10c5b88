"""The garbage collector stays out of the way of a command, and is there again afterwards."""

import gc
import sys

from support import processes

from vitrail.cli.collector import importing


def _printed(code: str) -> str:
    done = processes.run([sys.executable, "-c", code])
    assert not done.returncode, done.stderr
    return str(done.stdout)


def test_the_first_import_is_not_looked_at() -> None:
    code = """
import gc
from vitrail.cli.collector import importing

with importing():
    print(gc.isenabled())
    import torch
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    assert _printed(code) == "False\nTrue True\n"


def test_where_torch_is_there_nothing_is_changed() -> None:
    before = gc.get_freeze_count()
    with importing():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_a_failed_import_leaves_the_collector_on() -> None:
    code = """
import gc
from vitrail.cli.collector import importing

try:
    with importing():
        import no_such_module
except ImportError:
    print(gc.isenabled())
"""
    assert _printed(code) == "True\n"


def test_the_end_of_a_command_looks_at_nothing() -> None:
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # the last to be called
from vitrail.cli import main

main(["verify", "no such run"])
print(gc.get_freeze_count())
"""
    assert _printed(code) == "0\nTrue\n"
