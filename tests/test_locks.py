"""One writer at a time; a lock ends with its process, however that ends."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.processes import started

from vitrail import files, locks
from vitrail.errors import BusyError, Notice, WriteError
from vitrail.locks import locked

HOLDER = """
import sys
from pathlib import Path
from vitrail.locks import locked
with locked(Path(sys.argv[1]), what="the table"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_first_ones_name_until_that_dies(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started([sys.executable, "-c", HOLDER, str(file)], **pipes) as process:
        assert process.stdout.readline() == "held\n"
        for number in (None, signal.SIGSTOP):  # one that is stopped still holds it
            if number is not None:
                process.send_signal(number)
            with pytest.raises(BusyError, match=f"the table .*{process.pid} on {socket.gethostname()}"):
                locked(file, what="the table").__enter__()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert file.exists()  # it had no time to remove it, and nobody has to
    with locked(file, what="the table"):
        assert str(os.getpid()) in file.read_text()
    assert not file.exists()


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", what="a run"), pytest.raises(BusyError, match=str(os.getpid())):
        locked(tmp_path / ".lock", what="a run").__enter__()


def test_waiting_is_said_and_ends_with_the_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    file, order = tmp_path / ".lock", []

    def second() -> None:
        with locked(file, what="the pack", wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    with pytest.warns(Notice, match="waits"):
        with locked(file, what="the pack"):
            thread.start()
            thread.join(0.1)
            order.append("first")
        thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_named_and_the_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "lock", unsupported)
    ran = []
    with pytest.warns(Notice, match="no file locks"), locked(tmp_path / ".lock", what="a run"):
        ran.append(True)
    assert ran
    monkeypatch.setattr(files, "lock", unsupported)
    files.write_json(tmp_path / "file.json", {"a": 1})
    assert (tmp_path / "file.json").exists()


def test_a_disk_that_fails_is_an_error_and_not_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks, "lock", fails)
    with pytest.raises(WriteError, match="Input/output"):
        locked(tmp_path / ".lock", what="a run").__enter__()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="lock"):
        locked(tmp_path / "missing" / ".lock", what="a run").__enter__()
