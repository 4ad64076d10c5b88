"""Where the time of a run goes: every second belongs to one named phase."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from vitrail.report.values import duration

OTHER = "other"
FIRST_STEP = "first step"


class Ledger:
    """Seconds by phase, in the order in which phases began; an inner phase's time is not counted in the outer one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.until: dict[str, float] = {}  # seconds in all when a phase was over for the first time
        self._open = [OTHER]
        self._since = time.perf_counter()

    @classmethod
    def of_process(cls) -> "Ledger":
        """One that begins with the process: what has passed by now is the phase "import"."""
        new = cls()
        if (passed := process_seconds()) is not None:
            new._seconds["import"] = passed
        return new

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside as that of a phase."""
        self._switch()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()
            self.until.setdefault(name, sum(self._seconds.values()))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase until now; what belongs to none is "other", the last."""
        self._switch()
        found = dict(self._seconds)
        return {**{name: value for name, value in found.items() if name != OTHER}, OTHER: found.get(OTHER, 0.0)}

    def sentence(self) -> str:
        """All phases that took a tenth of a second or more, and when the first step was done, in one line."""
        found = self.seconds
        parts = [f"{name} {value:.1f} s" for name, value in found.items() if value >= 0.1]
        if not parts:
            return "time: less than 0.1 s"
        step = f"; first step done after {self.until[FIRST_STEP]:.1f} s" if FIRST_STEP in self.until else ""
        return f"time: {duration(sum(found.values()))} ({', '.join(parts)}){step}"

    def _switch(self) -> None:
        now, name = time.perf_counter(), self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


def process_seconds() -> float | None:
    """Seconds since this process began; None where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # the 22nd of all: ticks since the machine was started
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
