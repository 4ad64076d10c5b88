"""The process that forks decoders, as a worker sees it; what runs in it is `decoder.py`."""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from vitrail.serve.decoder import main; main()"
_STARTING = 30.0  # seconds that it may take


class ForkServer:
    """The process that forks decoders; one for each worker, shared by all pools in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def prepare(self) -> None:
        """Starts the process if there is none; it is ready a moment later."""
        with self._lock:
            self._connected()

    def start(self, channel: socket.socket, memory: int, limits: dict[str, Any]) -> int:
        """Forks a decoder that serves a channel and writes pixels into a memory file; its process id."""
        return self._ask(limits, channel.fileno(), memory)

    def end(self, pid: int, *, kill: bool) -> int:
        """Waits for a decoder that closed its channel, or kills it; the signal it died of, or 0."""
        try:
            return self._ask({"pid": pid, "kill": kill})
        except OSError:  # the fork server is gone, and its decoders with it
            return int(signal.SIGKILL)

    def close(self, owner: int) -> None:
        """Ends the process and its decoders; in a forked copy of its owner, nothing."""
        if os.getpid() == owner:
            with self._lock:
                self._close()

    def _ask(self, message: dict[str, Any], *descriptors: int) -> int:
        with self._lock:
            for _ in range(2):  # a fork server that was killed is replaced
                control = self._connected()
                with contextlib.suppress(OSError):
                    socket.send_fds(control, [json.dumps(message, allow_nan=False).encode()], descriptors)
                    if len(data := control.recv(4)) == 4:
                        return int(struct.unpack(">I", data)[0])
                self._close()
            raise ConnectionResetError("the process that starts decoders has ended")

    def _connected(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
                quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads do not fork
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, **quiet)  # noqa: S603
            ours.settimeout(_STARTING)
            self._control = ours
        return self._control

    def _close(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._control = self._process = None


@functools.cache
def fork_server(process: int) -> ForkServer:
    """The fork server of this process, until its end: a forked copy of it must not use the same, nor end it."""
    made = ForkServer()
    atexit.register(made.close, process)
    return made
