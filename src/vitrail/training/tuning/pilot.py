"""What an epoch will cost, before a trial is begun: a few images are timed; in steps it is known."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from vitrail.data.audit.doctor import FORWARDS
from vitrail.data.feeds.choice import make_feed
from vitrail.layers.fuse import fuse
from vitrail.training.assemble import Packs, assemble
from vitrail.training.config import change
from vitrail.training.distributed import World
from vitrail.training.linear_head import check_head
from vitrail.training.logs import Logs
from vitrail.training.plan import Plan

_TIMED = 16  # images
_FIXED = 2.0  # seconds to build, keep and evaluate a model
_EVALUATIONS = 2  # passes over the validation images after the last epoch


class Pace(NamedTuple):
    """What an epoch costs with its validation, and what a trial costs beside its epochs."""

    epoch: float
    fixed: float
    forward: float = 0.0  # to evaluate an image

    def epochs(self, amount: float, most: int) -> int:
        """As many epochs as fit, at least none and at most `most`."""
        return max(0, min(most, math.floor((amount - self.fixed) / self.epoch)))

    def scaled(self, times: float) -> "Pace":
        """The same where each image costs so many times as much."""
        return Pace(times * self.epoch, self.fixed, times * self.forward)

    def cost(self, epochs: int) -> float:
        """What so many epochs cost."""
        return self.fixed + epochs * self.epoch


class PacesBySize:
    """What ways of training cost on a CPU at the image sizes that were timed.

    To time even a few images may take minutes there where they are large.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[tuple[int, Pace]]] = {}

    def paces(self, way: tuple[str, ...], pixels: int, timed: Callable[[], Pace]) -> Iterator[Pace]:
        """The least that a way can cost, by what it costs with fewer pixels; then what it does, which is timed."""
        known = self._known.setdefault(way, [])
        yield from (pace.scaled(pixels / fewer) for fewer, pace in known if fewer < pixels)
        known.append((pixels, timed()))
        yield known[-1][1]


def steps_of(plan: Plan) -> Pace:
    """The same in steps; a head that is fitted counts as one epoch."""
    return Pace(float(max(1, len(plan.data.train) // plan.config.batch_size)), 0.0)


def seconds_of(plan: Plan, packs: Packs, device: torch.device) -> Pace:
    """The seconds of an epoch, or of a head that is fitted, by timing a few images twice."""
    images, validated = len(packs.train), len(packs.val)
    if plan.config.probe is not None:
        each = _forward(plan, packs, device)
        return Pace(each * (images + validated), _FIXED + _EVALUATIONS * validated * each, each)
    each = _step(plan, packs, device)
    fitted = images * each / FORWARDS if plan.config.fit_head else 0.0
    evaluation = validated * each / FORWARDS
    return Pace(images * each + evaluation, _FIXED + fitted + _EVALUATIONS * evaluation, each / FORWARDS)


def seconds_per_image(plan: Plan, packs: Packs, device: torch.device) -> float:
    """Seconds that training spends on an image: on its share of a step, or for a linear head on its features."""
    return (_step if plan.config.probe is None else _forward)(plan, packs, device)


def _forward(plan: Plan, packs: Packs, device: torch.device) -> float:
    """Seconds to compute the features of an image."""
    task = plan.build_task().to(device)
    check_head(task)
    model = fuse(task.backbone.eval())
    feed = make_feed(packs.train, batch_size=min(_TIMED, len(packs.train)), seed=0, shuffle=False, device=device)
    batch = next(iter(feed.epoch(0)))
    inputs = packs.train.prepare(plan.preprocess)(batch.images).contiguous(memory_format=torch.channels_last)
    seconds = 0.0
    with torch.no_grad():
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            model.pooled(model.features(inputs)).sum().item()  # waits for the device
            seconds = time.perf_counter() - began
    return seconds / len(inputs)


def _step(plan: Plan, packs: Packs, device: torch.device) -> float:
    """Seconds of a training step for each of its images; nothing of it is kept."""
    changes = {"batch_size": min(_TIMED, len(packs.train)), "accumulate": 1, "compile": False, "fit_head": False}
    short = replace(plan, config=change(plan.config, changes))
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder, Logs(Path(folder), silent=True) as logs:
        loop = assemble(short, packs, Path(folder), world=World(), device=device, shard="ddp", logs=logs)
        batch = next(iter(loop.feed.epoch(0)))
        loop.learner.task.train()
        for step in range(2):
            began = time.perf_counter()
            losses, _ = loop.step([batch], rate=0.0, epoch=0, step=step)
            losses["loss"].item()  # waits for the device
            seconds = time.perf_counter() - began
    return seconds / len(batch.ids)
