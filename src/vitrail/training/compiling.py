"""Whether compiling a model pays within a run: what it costs at the start against what it saves in all steps."""

from dataclasses import replace
from typing import NamedTuple

import torch

from vitrail.training.config import TrainConfig, change
from vitrail.training.cost import step_speed
from vitrail.training.distributed import World
from vitrail.training.eta import duration
from vitrail.training.logs import Logs
from vitrail.training.plan import Plan

SECONDS = 40.0  # the first step of a compiled ViT-S/16 on an H200, more than one that is not
GAIN = 1.18  # times as fast: the least that was measured there, of ViT-B/16; other models gain more


class Forecast(NamedTuple):
    """The seconds that all steps of a run take without compilation, and whether it pays."""

    seconds: float
    pays: bool

    def __str__(self) -> str:
        saved = self.seconds * (1 - 1 / GAIN)
        done = "is compiled" if self.pays else "is not compiled"
        return (
            f"the model {done}: all steps would take about {duration(self.seconds)} without, of which it saves "
            f"{duration(saved)} or more, and it takes about {duration(SECONDS)}"
        )


def forecast(config: TrainConfig, images: int, speed: float) -> Forecast:
    """What compilation does for a run on so many training images, at a speed in images/s."""
    seconds = config.epochs * images / speed
    return Forecast(seconds, seconds * (1 - 1 / GAIN) > SECONDS)


def decide(plan: Plan, images: int, device: torch.device, world: World, logs: Logs) -> Plan:
    """A plan that says whether its model is compiled, by the forecast, which is said; a CPU compiles nothing."""
    if device.type != "cuda":
        return replace(plan, config=change(plan.config, {"compile": False}))
    speed = step_speed(plan.bare(blank=True), device=device, wanted=plan.config.precision)
    found = world.collect(forecast(plan.config, images, speed * world.size))[0]  # the same in all processes
    logs.say(str(found))
    return replace(plan, config=change(plan.config, {"compile": found.pays}), notes=(*plan.notes, str(found)))
