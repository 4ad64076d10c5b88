"""The learning rate over a run: linear warm-up, then half a cosine (arXiv:1608.03983) or a polynomial, by step."""

import math
from dataclasses import dataclass

from vitrail.training.config import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A factor of the peak rate by step; the last warm-up step stands at 1, the last step of all at `final`."""

    total: int
    warmup: int
    final: float
    power: float | None = None  # of a polynomial; None for half a cosine

    @classmethod
    def of(cls, config: ScheduleConfig, *, epochs: int, steps: int) -> "Schedule":
        """The schedule for so many epochs of so many steps; the warm-up takes at most half of them."""
        total = epochs * steps
        warmup = min(round(config.warmup_epochs * steps), total // 2)
        power = config.power if config.shape == "poly" else None
        return cls(total=total, warmup=warmup, final=config.final, power=power)

    def __call__(self, step: int) -> float:
        """The factor for a step, counted from 0."""
        done = step + 1
        if done <= self.warmup:
            return done / self.warmup
        progress = min((done - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        left = (1 + math.cos(math.pi * progress)) / 2 if self.power is None else (1 - progress) ** self.power
        return self.final + (1 - self.final) * left
