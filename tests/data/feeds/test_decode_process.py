"""The first process of those that decode: a copy that is made early, and that never stays behind."""

import os
import signal
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from support.numbered_images import Numbered
from support.processes import started, wait_until_gone

from vitrail.data.feeds import decode_process
from vitrail.data.feeds.decode_pool import DecodePool, Task
from vitrail.data.feeds.decode_process import Copy, may_use_gpu, prepared
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only"),
]
FIT = Preprocess(image_size=(4, 4))


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has just begun, with a torch for GPUs."""
    monkeypatch.setattr(decode_process, "may_use_gpu", lambda _: True)
    monkeypatch.setattr(decode_process, "_may_copy", lambda: True)
    monkeypatch.setattr(decode_process, "_threads", lambda: 1)


def decoded(data: Numbered, count: int) -> list[int]:
    """The values of the first images of a data set, by a pool of two processes."""
    pool, found = DecodePool(data, FIT, workers=2), dict[int, int]()
    try:
        for index in range(0, count, 8):
            while not pool.has_room:
                take(pool, found)
            pool.send(Task(range(index, min(index + 8, count)), [], None))
        while len(found) < count:
            take(pool, found)
    finally:
        pool.close()
    return [found[index] for index in range(count)]


def take(pool: DecodePool, found: dict[int, int]) -> None:
    for done in pool.receive(1.0):
        images = pool.layout.views(done.pixels)[""]
        found |= {index: int(images[row].max()) for row, index in enumerate(done.task.indices)}


@pytest.mark.usefixtures("allowed")
def test_pools_use_the_copies_and_then_start_processes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with prepared():
        copies = list(decode_process._copies)
        assert len(copies) == 2
        with monkeypatch.context() as patch:
            patch.setattr(decode_process.subprocess, "Popen", None)
            for _ in copies:
                assert decoded(Numbered(40), 40) == list(range(40))
        assert not decode_process._copies
        assert decoded(Numbered(9), 9) == list(range(9))
    assert all(copy.returncode is not None for copy in copies)


@pytest.mark.usefixtures("allowed")
def test_copies_without_work_end_and_a_killed_one_is_replaced() -> None:
    with prepared():
        idle, killed = decode_process._copies
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait(10)
        assert decoded(Numbered(9), 9) == list(range(9))
    assert not Path(f"/proc/{idle.pid}").exists()


@pytest.mark.usefixtures("allowed")
def test_a_crash_in_a_copy_is_told_like_any_other() -> None:
    with prepared(), pytest.raises(DataError, match="signal 9"):
        decoded(Numbered(20, deadly=13), 20)


@pytest.mark.usefixtures("allowed")
def test_a_process_with_other_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_process, "_threads", lambda: 2)
    with prepared():
        assert not decode_process._copies
    monkeypatch.undo()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert not decode_process._may_copy()
    stop.set()
    thread.join()


def test_a_gpu_is_expected_where_torch_is_built_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for built in (False, True):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda built=built: built)
        assert [may_use_gpu(one) for one in (None, "cuda:1", torch.device("cuda"))] == [built] * 3
        assert not may_use_gpu("cpu")


SCRIPT = """
import sys, time
from vitrail.data.feeds import decode_process
decode_process.may_use_gpu = lambda _: True
with decode_process.prepared():
    print(*[copy.pid for copy in decode_process._copies], flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_no_copy_outlives_the_program(number: int) -> None:
    with started([sys.executable, "-c", SCRIPT], stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        copies = [int(word) for word in process.stdout.readline().split()]
        assert len(copies) == 2
        process.send_signal(number)
        process.wait(20)
        wait_until_gone(copies)


def test_waiting_for_a_copy_ends_in_time() -> None:
    copy = Copy()
    with pytest.raises(decode_process.subprocess.TimeoutExpired):
        copy.wait(0.05)
    copy.end()
    assert copy.returncode in (0, -signal.SIGKILL)  # it also ends by itself when its channel is closed
