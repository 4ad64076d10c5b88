"""Timing in turns, so that a busy machine slows all engines alike; ratios with their spread."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch


class Spread(NamedTuple):
    """A median, and the range of the middle half."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """The spread of some measurements."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds that each took in each round; all are called `warm` times before, and each round begins with another."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(warm):
            run()
    names = list(runs)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            runs[name]()
            taken[name].append(clock() - start)
    return taken


def ratios(taken: Mapping[str, list[float]], base: str) -> dict[str, Spread]:
    """How many times as fast as the base each was, round by round; some were measured in the first rounds alone."""
    return {
        name: Spread.of([ours / theirs for ours, theirs in zip(taken[base], times, strict=False)])
        for name, times in taken.items()
    }


def synchronised(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same, which ends when its work on the device has ended."""
    if device.type != "cuda":
        return run

    def whole() -> object:
        found = run()
        torch.cuda.synchronize(device)
        return found

    return whole


def machine(device: torch.device | None = None) -> str:
    """Processor, cores and versions, for reports; the GPU first, where that is the device."""
    name = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  (a pseudo file, read line by line)
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    except OSError:  # not Linux
        name = platform.processor() or name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    gpu = "" if device is None or device.type != "cuda" else f"{torch.cuda.get_device_name(device)}; "
    return f"{gpu}{name}, {cores} cores, {threads} thread{'s' if threads > 1 else ''}; torch {torch.__version__}"
