"""Whether a model in int8 is good enough: by its answers beside those of float32, or by the task's metric on labels."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.deploy.artefact.engine import Array, Engine, in_batches, joined, part_of
from vitrail.report import Unit

BATCH = 16  # images at a time
UNLABELLED = 0.98  # the share of boxes, pixels or depth maps that must stay the same where no labels are known


class Closeness(NamedTuple):
    """The least cosine, and the share of the same answers as float32 gives."""

    cosine: float
    agreement: float


class Judge(ABC):
    """Compares engines with the float32 one, on the same images at one or more sizes."""

    @abstractmethod
    def closeness(self, engine: Engine) -> Closeness | None:
        """How close answers are; None where they are not close enough."""


class ByAnswers(Judge):
    """At every size, answers must be as close to those of float32 as `needed`."""

    def __init__(self, plain: Engine, pixels: Sequence[Array], needed: Closeness) -> None:
        self.pixels, self.needed = pixels, needed
        self.expected = [in_batches(plain, images, BATCH) for images in pixels]

    def closeness(self, engine: Engine) -> Closeness | None:
        """The worst over all sizes; the sizes after one that is not good enough are not tried."""
        pairs = zip(self.pixels, self.expected, strict=True)
        return least(closeness(engine, *each, self.needed) for each in pairs)


class Lost(NamedTuple):
    """The metric that decides, for float32 and for int8."""

    title: str
    unit: Unit
    before: float
    after: float


class ByMetric(Judge):
    """At the model's own size, the task's metric on labelled images may get worse by `allowed`."""

    def __init__(self, plain: Engine, pixels: Sequence[Array], truth: Mapping[str, Tensor], *, allowed: float) -> None:
        self.answers = ByAnswers(plain, pixels, Closeness(-1.0, 0.0))
        self.truth, self.allowed = truth, allowed
        self.about = plain.task.about_metrics[plain.task.best_metric]
        score = self._measured(plain, self.answers.expected[0])
        self.lost = Lost(self.about.title, self.about.unit, score, score)

    def closeness(self, engine: Engine) -> Closeness | None:
        """None where too much is lost; then answers are not compared."""
        found = in_batches(engine, self.answers.pixels[0], BATCH)
        self.lost = self.lost._replace(after=self._measured(engine, found))
        loss = self.lost.before - self.lost.after
        if not (loss if self.about.higher else -loss) <= self.allowed:
            return None
        return self.answers.closeness(engine)

    def _measured(self, engine: Engine, outputs: Mapping[str, Array]) -> float:
        meter = engine.task.metrics()
        meter.update({name: torch.from_numpy(values) for name, values in outputs.items()}, self.truth)
        return float(meter.compute()[engine.task.best_metric])


def closeness(engine: Engine, pixels: Array, expected: Mapping[str, Array], needed: Closeness) -> Closeness | None:
    """How close answers are to the expected ones; None as soon as they are known to be too far off."""
    found: list[dict[str, Array]] = []
    spare = (1 - needed.agreement) * len(pixels) + 1e-6
    for start in range(0, len(pixels), BATCH):
        part = slice(start, start + BATCH)
        found.append(engine.run(pixels[part]))
        _, cosine, agreement = engine.task.agreement(part_of(expected, part), found[-1])
        spare -= (1 - agreement) * len(pixels[part])
        if spare < 0 or cosine < needed.cosine:
            return None
    return Closeness(*engine.task.agreement(expected, joined(found))[1:])


def least(found: Iterable[Closeness | None]) -> Closeness | None:
    """The worst over all sizes; None where one of them is not good enough, and the sizes after it are not tried."""
    worst = Closeness(1.0, 1.0)
    for one in found:
        if one is None:
            return None
        worst = Closeness(min(worst.cosine, one.cosine), min(worst.agreement, one.agreement))
    return worst
