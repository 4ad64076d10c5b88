"""The choice of device and precision, and how a device is used well."""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

import torch

from vitrail.errors import ConfigError, Unsupported, nearest

Precision = Literal["float32", "bf16", "fp16"]
Wanted = Literal["auto", "float32", "bf16", "fp16", "fp8"]
Lighter = Literal["float32", "bf16", "fp8"]  # what the weights of a trained model may have

CAP = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"
_KINDS = ("cpu", "cuda", "mps")
_PIXELS = 100_000  # of a batch on a CPU: larger activations leave its caches, and above 32 MB each is mapped anew
_FP8 = (8, 9)  # compute capability of the first GPUs with products in 8 bits
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device(requested: str | torch.device | None = None) -> torch.device:
    """The requested device, by default a GPU if there is one; with torchrun, the GPU of the local rank."""
    kind = str(requested) if requested is not None else _best()
    if kind.partition(":")[0] not in _KINDS:
        raise ConfigError(f"unknown device {kind!r}; {nearest(kind, _KINDS)}")
    if kind.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ConfigError(f"device {kind!r} is not available: torch finds no GPU; use device='cpu'")
        if kind == "cuda":
            kind = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device 'mps' is not available; use device='cpu'")
    return torch.device(kind)


def inference_batch_size(where: torch.device | str, image_size: tuple[int, int], *, most: int) -> int:
    """How many images to pass through a model at once for inference: `most`, on a CPU 4 to 64 by their size."""
    if torch.device(where).type != "cpu":
        return most
    height, width = image_size
    return min(max(_PIXELS // (height * width), 4), 64, most)


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream of the GPU for a whole run, since a CUDA graph cannot be captured on the default one.

    Autograd accumulates gradients on the stream of the first step, so that all steps have to be on this one.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield
        torch.cuda.synchronize(device)


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def precision(wanted: Wanted, where: torch.device) -> tuple[Precision, str | None]:
    """The precision to use on a device, and a message if it is not the requested one.

    That of "fp8", where linear maps of blocks compute in 8 bits, is bf16 for all else; Unsupported where it cannot be.
    """
    if wanted == "fp8":
        check_fp8(where)
        return "bf16", None
    if wanted == "auto":
        fast = where.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16" if fast else "float32"), None
    if wanted == "fp16" and where.type != "cuda":
        return "float32", f"fp16 needs a GPU; float32 is used on {where.type}"
    if wanted == "bf16" and where.type == "cpu" and not bf16_works():
        os.environ.setdefault(*CAP)  # for child processes; this one may have read it already
        return "float32", (
            "bf16 matrix products crash on this CPU (it reports AMX, but does not support it); float32 is used. For "
            f"bf16, set the environment variable {CAP[0]}={CAP[1]}"
        )
    return wanted, None


@functools.cache
def bf16_works() -> bool:
    """Whether bf16 matrix products work on this CPU; a child process tries one, since it may crash (SIGILL)."""
    tried = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)  # noqa: S603  (our own text)
    return tried.returncode == 0


def check_fp8(where: torch.device) -> None:
    """Unsupported where a device has no products in 8 bits."""
    if not fp8_works(where):
        raise Unsupported(
            f"precision 'fp8' needs an NVIDIA GPU of compute capability {_FP8[0]}.{_FP8[1]} or newer, such as L4 or "
            f"H100, which {where} is not; use 'bf16'"
        )


def fp8_works(where: torch.device) -> bool:
    """Whether a device has products in 8 bits."""
    return where.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(where) >= _FP8


def autocast(where: torch.device, chosen: Precision) -> torch.autocast:
    """The autocast context for a precision."""
    return torch.autocast(where.type, dtype=_HALF.get(chosen), enabled=chosen in _HALF)


def autocast_dtype(chosen: Precision) -> torch.dtype:
    """The type of products in a precision."""
    return _HALF.get(chosen, torch.float32)


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_ROOM = 1 << 16
_held: list[ctypes.Array[ctypes.c_char]] = []


def room_for_signals() -> None:
    """Replaces a small alternate signal stack of this thread by one that is never freed.

    OpenVINO maps one for the thread that opens an engine, and unmaps it with the last engine, possibly in another
    thread: a signal after that would crash the process.
    """
    if sys.platform != "linux":
        return
    set_stack = ctypes.CDLL(None).sigaltstack
    current = _SignalStack()
    if set_stack(None, ctypes.byref(current)) == 0 and current.start and current.size < _ROOM:
        _held.append(ctypes.create_string_buffer(_ROOM))  # never freed: the kernel has its address
        set_stack(ctypes.byref(_SignalStack(ctypes.addressof(_held[-1]), 0, _ROOM)), None)
