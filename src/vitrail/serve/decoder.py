"""The processes that decode images: decoders, and a fork server that forks them. None of them imports torch.

Whatever a hostile file does to Pillow, it happens in a process with limits on memory and processor time, which dies
alone. The fork server has numpy and Pillow loaded, so that another decoder is there within milliseconds. It ends, and
kills its decoders, when its control socket closes: also when the worker was killed.

Why not a pool from a library: those of Pebble, loky and concurrent.futures start an interpreter for each process that
they replace, or import the main module of the parent into it; they know no limit on memory; and they pickle results,
which would let a decoder that was taken over run code in the worker. Here, JSON and pixels are all that comes back, and
the worker checks the size of the one and the shape of the other.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode_pixels import decode_pixels
from vitrail.errors import BrokenImage

CHANNELS = 3  # at most
_PLUGINS = ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP")  # of Pillow, which it loads when they are needed
_LENGTH = struct.Struct(">I")
_MAX_MESSAGE = 64 << 10  # bytes
_PR_SET_PDEATHSIG = 1
_LARGE = 4 << 20  # pixels after which free memory is returned to the system
_PATIENCE = 0.1  # seconds that a dying decoder has to say what it died of


def send_message(
    channel: socket.socket, message: dict[str, Any], payload: "bytes | bytearray | memoryview" = b""
) -> None:
    """Sends a message, and the bytes that it announces."""
    text = json.dumps(message, allow_nan=False).encode()
    channel.sendall(_LENGTH.pack(len(text)) + text)
    if payload:
        channel.sendall(payload)


def receive_message(channel: socket.socket, *, until: float | None = None) -> dict[str, Any]:
    """The next message; EOFError at the end, ValueError where it is too long or not a JSON object.

    TimeoutError where it is not complete at a time of the monotonic clock, however slowly its bytes come.
    """
    size = _LENGTH.unpack(receive_bytes(channel, _LENGTH.size, until=until))[0]
    if size > _MAX_MESSAGE:
        raise ValueError(f"a message of {size:,} bytes; at most {_MAX_MESSAGE:,} are allowed")
    try:
        message = json.loads(receive_bytes(channel, size, until=until))
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is not a JSON object")
    return message


def receive_bytes(channel: socket.socket, count: int, *, until: float | None = None) -> bytearray:
    """Exactly so many bytes; EOFError when they do not come."""
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        if until is not None:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            channel.settimeout(left)
        if not (size := channel.recv_into(view[filled:])):
            raise EOFError
        filled += size
    return data


def run_fork_server(control: socket.socket) -> None:
    """Forks a decoder for each message with two file descriptors, ends one for each other message."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the worker decides, and drains before it ends
        signal.signal(number, signal.SIG_IGN)
    decoders: set[int] = set()
    own = os.getpid()
    for name in _PLUGINS:
        importlib.import_module(f"PIL.{name}ImagePlugin")
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
        if not data:
            break
        message = json.loads(data)
        if descriptors:
            if (pid := os.fork()) == 0:
                control.close()
                _run_decoder(*descriptors, parent=own, **message)
            for descriptor in descriptors:
                os.close(descriptor)
            decoders.add(pid)
            answer = pid
        else:
            answer = _end(message["pid"], decoders, kill=message["kill"])
        control.sendall(_LENGTH.pack(answer))
    for pid in decoders:
        os.kill(pid, signal.SIGKILL)


def _end(pid: int, decoders: set[int], *, kill: bool) -> int:
    """Waits for the end of a decoder, or kills it; the signal that it died of, or 0."""
    if pid not in decoders:
        return 0
    decoders.remove(pid)
    until = time.monotonic() + _PATIENCE
    while not kill and time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return int(signal.SIGKILL)


def _run_decoder(
    channel_fd: int, memory_fd: int, *, parent: int, max_pixels: int, max_bytes: int, **limits: Any
) -> None:
    """Decodes until the channel closes; never returns."""
    try:
        with contextlib.suppress(AttributeError, OSError):  # Linux only; elsewhere the fork server alone sees to it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before this process asked to die with it
            raise EOFError
        memory = mmap.mmap(memory_fd, CHANNELS * max_pixels)
        most = _address_space() + max_bytes
        with contextlib.suppress(ValueError):  # not on macOS
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=channel_fd) as channel:
            while True:
                _decode_next(channel, memory, max_pixels=max_pixels, **limits)
    except (EOFError, OSError):
        os._exit(0)  # the worker is done with this decoder
    finally:
        os._exit(1)


def _decode_next(
    channel: socket.socket, memory: mmap.mmap, *, max_pixels: int, formats: list[str], seconds: float
) -> None:
    request = receive_message(channel)
    data = bytes(receive_bytes(channel, request["bytes"]))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # at its end, SIGPROF kills: no handler of Python is needed
    try:
        pixels = decode_pixels(data, name=request["name"], max_pixels=max_pixels, formats=formats)
    except BrokenImage as error:
        answer: dict[str, Any] = {"error": str(error)}
    else:
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)  # C H W
        np.frombuffer(memory, np.uint8, planes.size).reshape(planes.shape)[...] = planes
        answer = {"shape": planes.shape}
        large = planes.size > _LARGE
        del pixels, planes
        if large and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    send_message(channel, answer)


def _address_space() -> int:
    """Bytes of virtual memory in use; 0 where /proc does not exist."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def main() -> None:
    """The fork server as a program: the file descriptor of its control socket is the first argument."""
    run_fork_server(socket.socket(fileno=int(sys.argv[1])))
