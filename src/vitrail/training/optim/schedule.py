"""The learning rate over a run: linear warm-up, then half a cosine (arXiv:1608.03983), set anew at each step."""

import math
from dataclasses import dataclass

from vitrail.training.config import ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A factor of the peak rate by step; the last warm-up step stands at 1, the last step of all at `final`."""

    total: int
    warmup: int
    final: float

    @classmethod
    def of(cls, config: ScheduleConfig, *, epochs: int, steps: int) -> "Schedule":
        """The schedule for so many epochs of so many steps; the warm-up takes at most half of them."""
        total = epochs * steps
        return cls(total=total, warmup=min(round(config.warmup_epochs * steps), total // 2), final=config.final)

    def __call__(self, step: int) -> float:
        """The factor for a step, counted from 0."""
        done = step + 1
        if done <= self.warmup:
            return done / self.warmup
        progress = min((done - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
