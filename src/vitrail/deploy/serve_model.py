"""The model behind a service: opened by a recipe, warmed up, and swapped for another while requests go on."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vitrail.deploy.calibration import Calibration
from vitrail.deploy.engine import Engine
from vitrail.errors import VitrailError


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A way to explain a model, and what there is to choose: one of so many layers, one of the heads of each."""

    method: str
    targeted: bool = True  # whether the map belongs to one class
    layers: int = 0  # 0: it has no choice of a layer
    heads: tuple[int, ...] = ()  # of each layer; none: it has no choice of a head


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be explained, and how: the likeliest class, the last layer, all heads where none is named."""

    method: str
    target: int | None = None
    layer: int | None = None
    head: int | None = None


class Explainer(Protocol):
    """Where a model looks: made by whoever knows both the model and how to explain it."""

    @property
    def offers(self) -> Sequence[Offer]:
        """What it can do, the best first."""
        ...

    def __call__(self, image: Tensor, question: Question) -> Tensor:
        """How much each pixel of a uint8 picture C H W matters: float32 H W."""
        ...


@dataclass(frozen=True, kw_only=True)
class Served:
    """An engine, how sure it may sound, and what explains it."""

    engine: Engine
    calibration: Calibration = field(default_factory=Calibration)
    explainer: Explainer | None = None
    generation: int = 1
    opened: float = 0.0  # seconds since 1970

    def probabilities(self, logits: Tensor) -> Tensor:
        """B K -> B K: how likely each class is, calibrated where that was asked for."""
        return self.engine.probabilities(logits / self.calibration.temperature)


Opener = Callable[[], Served]  # picklable, as every worker opens for itself


class Slot:
    """Holds the model in use; a request keeps the one that it began with."""

    def __init__(self, opener: Opener) -> None:
        self._opener, self._lock = opener, threading.Lock()
        self.error: str | None = None  # why the last swap failed
        self.served = self._open(1)

    def reload(self) -> bool:
        """Opens the model again and takes it into use; whatever goes wrong, the old one stays."""
        with self._lock:
            try:
                self.served = self._open(self.served.generation + 1)
            except (VitrailError, OSError, RuntimeError) as error:
                self.error = str(error)
                return False
            self.error = None
            return True

    def _open(self, generation: int) -> Served:
        made = self._opener()
        height, width = made.engine.image_size
        made.engine.predict(
            torch.zeros(1, made.engine.card.channels, height, width, dtype=torch.uint8)
        )  # warm, and works
        return Served(
            engine=made.engine,
            calibration=made.calibration,
            explainer=made.explainer,
            generation=generation,
            opened=time.time(),
        )
