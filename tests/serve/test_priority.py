"""Priorities of a process and of a thread."""

import os
import subprocess
import sys
import threading

import pytest
from support.processes import started

from vitrail.serve.priority import lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, threads have no priorities of their own")


@linux
def test_of_a_thread_alone() -> None:
    found: list[int] = []

    def work() -> None:
        lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [max(10, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_of_a_process() -> None:
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lower_priority(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
    lower_priority(process.pid)  # it is gone
