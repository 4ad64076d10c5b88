"""The processes that decode: light, limited, and gone when the process that uses them is."""

import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import run, started
from support.small_service import picture

from vitrail.serve.decoder import CHANNELS, receive_bytes, receive_message, send_message

LIMITS = {"max_pixels": 10_000, "max_bytes": 64 << 20, "formats": ["PNG"], "seconds": 5.0}
FORK_SERVER = "import sys; from vitrail.serve.decoder import main; main()"
# A worker: starts a fork server and a decoder, says which, and waits.
WORKER = f"""
import json, os, socket, struct, subprocess, sys, time
ours, theirs = socket.socketpair()
server = subprocess.Popen([sys.executable, "-c", {FORK_SERVER!r}, str(theirs.fileno())], pass_fds=[theirs.fileno()])
theirs.close()
channel, far = socket.socketpair()
memory = os.memfd_create("pixels")
os.ftruncate(memory, {CHANNELS * LIMITS["max_pixels"]})
socket.send_fds(ours, [json.dumps({LIMITS!r}).encode()], [far.fileno(), memory])
print(server.pid, struct.unpack(">I", ours.recv(4))[0], flush=True)
time.sleep(60)
"""
linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


def test_decoders_do_without_torch() -> None:
    found = run([sys.executable, "-c", "import sys, vitrail.serve.decoder; print('torch' in sys.modules)"])
    assert found.stdout.strip() == "False", found.stderr


@linux
def test_decoders_die_with_a_worker_that_was_killed() -> None:
    with started([sys.executable, "-c", WORKER], stdout=-1, text=True) as worker:
        pids = [int(word) for word in worker.stdout.readline().split()]
        assert len(pids) == 2
        assert all(_alive(pid) for pid in pids)
        worker.kill()
        until = time.monotonic() + 10
        while any(_alive(pid) for pid in pids):
            assert time.monotonic() < until, "they are still there"
            time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def control() -> Iterator[socket.socket]:
    """A fork server of its own."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with started([sys.executable, "-c", FORK_SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()]), ours:
        theirs.close()
        yield ours


@linux
def test_a_fork_server_starts_and_ends_decoders(control: socket.socket) -> None:
    channel, far = socket.socketpair()
    channel.settimeout(20)
    memory = os.memfd_create("pixels")
    os.ftruncate(memory, CHANNELS * LIMITS["max_pixels"])
    socket.send_fds(control, [json.dumps(LIMITS).encode()], [far.fileno(), memory])
    (pid,) = struct.unpack(">I", control.recv(4))
    far.close()
    for data, answer in (
        (picture(77, size=(5, 4)), {"shape": [1, 4, 5]}),
        (b"?", {"error": "a.png cannot be decoded"}),
    ):
        send_message(channel, {"name": "a.png", "bytes": len(data)}, data)
        assert receive_message(channel).items() >= answer.items() or "error" in answer
    assert os.pread(memory, 21, 0) == 20 * b"\x4d" + b"\0"
    for known, found in ((pid, signal.SIGKILL), (pid, 0), (1, 0)):  # ended, ended already, none of its own
        control.sendall(json.dumps({"pid": known, "kill": True}).encode())
        assert struct.unpack(">I", control.recv(4))[0] == found
    with channel, pytest.raises(EOFError):
        receive_bytes(channel, 1)
    os.close(memory)
