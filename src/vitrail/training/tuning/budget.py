"""What a search may spend: seconds of wall time, or, so that it is the same each time, optimiser steps."""

import time
from collections.abc import Mapping
from typing import Any, Literal

from vitrail.errors import ConfigError
from vitrail.report.values import duration

Kind = Literal["seconds", "steps"]
MOST_MINUTES = 60 * 24 * 7.0


class Budget:
    """So many seconds or steps; `spent` of them before this process."""

    def __init__(self, kind: Kind, total: float, *, spent: float = 0.0) -> None:
        self.kind, self.total = kind, total
        self._spent, self._began, self._running = spent, time.perf_counter(), kind == "seconds"

    @classmethod
    def of(cls, minutes: float | None, steps: int | None) -> "Budget":
        """A budget of minutes or of steps."""
        if (minutes is None) == (steps is None):
            raise ConfigError("tuning needs a budget: minutes, or steps")
        if minutes is not None:
            if not 0 < minutes <= MOST_MINUTES:
                raise ConfigError(f"--minutes {minutes:g} is not allowed: must be above 0, at most {MOST_MINUTES:g}")
            return cls("seconds", 60 * minutes)
        assert steps is not None  # noqa: S101  (one of them was given)
        if steps < 1:
            raise ConfigError(f"steps={steps} is not allowed: must be 1 or more")
        return cls("steps", steps)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Budget":
        """The inverse of `to_dict`; time goes on from there."""
        if data["kind"] not in ("seconds", "steps"):
            raise ValueError(data["kind"])
        return cls(data["kind"], float(data["total"]), spent=float(data["spent"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with what is spent by now."""
        return {"kind": self.kind, "total": self.total, "spent": round(self.spent, 3)}

    @property
    def timed(self) -> bool:
        """Whether it is of wall time."""
        return self.kind == "seconds"

    @property
    def spent(self) -> float:
        """What is spent by now."""
        return self._spent + (time.perf_counter() - self._began if self._running else 0.0)

    @property
    def left(self) -> float:
        """What is left; negative where more was spent."""
        return self.total - self.spent

    def stop(self) -> None:
        """Lets no more time pass."""
        self._spent, self._running = self.spent, False

    def charge(self, steps: float) -> None:
        """Notes down steps that were made; wall time passes by itself."""
        if not self.timed:
            self._spent += steps

    def text(self, amount: float) -> str:
        """An amount as people say it."""
        return duration(max(amount, 0.0)) if self.timed else f"{amount:,.0f} steps"
