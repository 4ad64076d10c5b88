"""What interrupts a run: losses that are not finite, and signals."""

import signal
from types import FrameType
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from vitrail.errors import TrainingError


class FiniteCheck:
    """Remembers, on the device and without waiting for it, the first step whose loss or gradient was not finite."""

    def __init__(self, device: torch.device) -> None:
        self.first = torch.full((), -1, dtype=torch.int64, device=device)

    def watch(self, step: int, *values: Tensor) -> None:
        """Takes in the scalars of a step."""
        finite = torch.stack([value.detach().float() for value in values]).isfinite().all()
        self.first = torch.where(finite | (self.first >= 0), self.first, step)


def refuse(step: int, epoch: int, saved: list[int]) -> NoReturn:
    """Ends a run whose loss or gradient is not finite."""
    kept = f"the checkpoint of step {saved[-1]} is kept" if saved else "nothing was saved yet"
    raise TrainingError(
        f"the loss or its gradient is not finite at step {step + 1} (epoch {epoch + 1}); {kept}. "
        f"Try a lower learning rate (--lr), a longer warm-up (--set schedule.warmup_epochs=10), or --precision float32"
    )


class Signals:
    """Within this context SIGINT and SIGTERM only leave a note; a second one acts as usual."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        try:
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signal handlers stay as they are
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def leave(number: int) -> NoReturn:
    """Ends the process as the signal would have: exit code 130 for SIGINT, 143 for SIGTERM."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
