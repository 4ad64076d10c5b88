"""The machine that experiments run on: its name for records, and its speed for estimates of time."""

import platform
import time
from pathlib import Path

import torch

from vitrail import __version__

REFERENCE = 0.0216  # seconds that `speed_probe` takes on the machine of docs/lab.md


def hardware(device: torch.device) -> str:
    """The processor or GPU in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads != 1 else ''}"


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    return {"vitrail": __version__, "torch": torch.__version__, "python": platform.python_version()}


def slowness() -> float:
    """How many times longer this machine takes than that of docs/lab.md; measured in a fraction of a second."""
    return speed_probe() / REFERENCE


def speed_probe() -> float:
    """Seconds of a few matrix products and exponentials, the best of five."""
    tokens = torch.linspace(-1, 1, 512 * 512).reshape(512, 512)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(4):
            (tokens @ tokens).softmax(dim=-1) @ tokens
        best = min(best, time.perf_counter() - start)
    return best


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
