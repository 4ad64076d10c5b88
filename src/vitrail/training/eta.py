"""How long a run will take, estimated from its first steps; and what would make it shorter."""

import torch

from vitrail.config import apply
from vitrail.errors import VitrailError
from vitrail.models.registry import FAMILIES, build
from vitrail.packaged import PHOTOS
from vitrail.training.plan import Plan

LONG = 30 * 60  # seconds: for a run that takes this long, ways to make it shorter are shown
_SHORT = 10  # seconds: of shorter runs nothing is shown
_SLOW = 5  # seconds of a first step that are enough, though it warms up
_TIMED = 2  # seconds of later steps that are enough, if they are a few
_FEW = 5  # steps: a single one may have been delayed
_DELAYED = 20  # seconds: no single step is delayed so long
_PATIENCE = 20 * 60  # seconds that fewer epochs are to take


class StepTimer:
    """Measures how long a step takes; it gives its estimate once."""

    def __init__(self, *, left: int, began: float, compiled: bool = False) -> None:
        self.left = left  # optimiser steps when it began
        self.began, self.compiled = began, compiled
        self.first: tuple[int, float] | None = None  # the first look: steps and when
        self.reported = False

    def step(self, done: int, now: float) -> float | None:
        """The seconds that a step takes, as soon as enough of them were timed; None before and after.

        The first one warms up: it counts only where it was slow for another reason than being compiled.
        """
        if self.reported:
            return None
        if self.first is None:
            self.first = done, now
            slow = now - self.began >= _SLOW and not self.compiled
            return self._report((now - self.began) / done) if slow else None
        steps, since = done - self.first[0], now - self.first[1]
        enough = since >= _TIMED if steps >= _FEW else since >= _DELAYED
        return self._report(since / steps) if enough else None

    def epoch(self, done: int, now: float) -> float | None:
        """The same at the end of the first epoch, with its validation, where that came first."""
        return None if self.reported else self._report((now - self.began) / done)

    def _report(self, seconds: float) -> float | None:
        self.reported = True
        return seconds if seconds * self.left >= _SHORT else None


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `2 h 40 min`, `3 days 4 h`."""
    if seconds < 99:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def ways_to_shorten(plan: Plan, device: torch.device, epoch: float) -> str:
    """How to shorten a run whose epochs take so many seconds."""
    ways = []
    if (half := _half(plan)) is not None:
        ways.append(f"--image-size {half} (a quarter of the patches)")
    if plan.start is None and plan.schema:
        head = plan.task.num_outputs(plan.schema) > 0
        ways += [f"--from {PHOTOS} --set probe=linear (a linear head, in minutes)"] if head else []
        ways.append("--from WEIGHTS --epochs 5 (fine-tuning needs few epochs)")
    if (fewer := int(_PATIENCE / epoch)) > 0:
        ways.append(f"--epochs {fewer} (about {duration(fewer * epoch)})")
    ways.append("--minutes 30 (the best of what fits in that time)")
    ways.append("a smaller --model" if device.type != "cpu" else "a smaller --model, or a machine with a GPU")
    return f"to make it faster: {'; '.join(ways)}. Ctrl-C saves and stops; --resume continues"


def _half(plan: Plan) -> str | None:
    """Half the image's sides as an option, where the model can be built for them."""
    config = plan.backbone_config
    height, width = (side // 2 for side in config.image_size)
    try:
        with torch.device("meta"):
            build(FAMILIES[plan.model["family"]], apply(config, {"image_size": (height, width)}))
    except VitrailError:
        return None
    return str(height) if height == width else f"{height}x{width}"
