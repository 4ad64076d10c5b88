"""What a run is computed by: versions, device, threads. Other ones round sums differently, so bits may differ.

A run records its environment. When it is resumed, the number of CPU threads is restored, and all else that differs is
noted.
"""

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vitrail import __version__
from vitrail.errors import TrainingError
from vitrail.hardware import CAP
from vitrail.training.logs import Logs
from vitrail.training.plan import Plan
from vitrail.training.state import differences

# Variables that choose between kernels, or how they round.
_VARIABLES = (CAP[0], "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE")
_HARMLESS = ("python",)
_MOST_THREADS = 4096  # that a file may ask for


def environment(device: torch.device, *, processes: int, precision: str) -> dict[str, Any]:
    """Everything beside recipe and data that a run's bits depend on, as plain values."""
    found: dict[str, Any] = {
        "vitrail": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}, {_name(device)}",
        "processes": processes,
        "precision": precision,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    else:
        found |= {"instructions": torch.backends.cpu.get_cpu_capability()}
    return found | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """A note on what differs between two environments; None where the bits of a run should be the same."""
    known = before.keys() | (set(_VARIABLES) if "threads" in before else set())  # older runs recorded less
    ignored = {*_HARMLESS, *(() if "instructions" in now else ("threads",))}  # a GPU computes without them
    names = [name for name in (*before, *_VARIABLES) if name in known and name not in ignored]
    found = differences({name: before.get(name) for name in names}, {name: now.get(name) for name in names})
    if not found:
        return None
    return (
        f"the environment is not that of the start of the run: {'; '.join(found)}. The resumed run is not the same bit "
        "by bit as one that was never interrupted"
    )


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Computes on so many CPU threads within the block; None changes nothing."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of(plan: Plan, before: Mapping[str, Any], device: torch.device, logs: Logs) -> int | None:
    """The number of CPU threads to compute on: that of the recipe, else that with which the run began."""
    began, usual = before.get("threads"), torch.get_num_threads()
    if plan.config.threads is not None or began is None or device.type != "cpu":
        return plan.config.threads
    if type(began) is not int or not 0 < began <= _MOST_THREADS:
        raise TrainingError(f"run.json is damaged: the run began with {str(began)[:80]!r} threads; start a new run")
    if began != usual:
        logs.say(f"threads: {began}, as at the start of the run, for the same bits; --set threads={usual} overrides")
    return began
