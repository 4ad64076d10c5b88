"""What the service needs of a model and of an explainer, and the slot that holds the model in use.

Engines and explainers come from outside, so that the service depends neither on how a model was exported nor on how it
is explained.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from vitrail.runs.trial import try_model

if TYPE_CHECKING:
    from vitrail.data.preprocess import Preprocess
    from vitrail.tasks.task import Task


class Card(Protocol):
    """What the service shows of a model's card."""

    @property
    def licence(self) -> str:
        """Of the weights."""


class Engine(Protocol):
    """A model that runs, as `vitrail.deploy.artefact.opening.open_engine` returns it; called from several threads."""

    @property
    def task(self) -> "Task":
        """Decodes outputs into answers."""

    @property
    def preprocess(self) -> "Preprocess":
        """Resizes and crops images to the size of the model."""

    @property
    def about(self) -> str:
        """The model in one sentence."""

    @property
    def backend(self) -> str:
        """Library and precision."""

    @property
    def card(self) -> Card:
        """The model's metadata."""

    def outputs(self, images: Tensor) -> Mapping[str, Tensor]:
        """Uint8 B C *image_size, resized and cropped by `preprocess.fit` -> B ... by name."""


class ExplainMethod(Protocol):
    """A method of explanation and its options."""

    @property
    def method(self) -> str:
        """Its name."""

    @property
    def targeted(self) -> bool:
        """Whether the map belongs to one output of the model."""

    @property
    def layers(self) -> int:
        """How many layers there are to choose from; 0: no choice."""

    @property
    def heads(self) -> Sequence[int]:
        """How many heads each layer has to choose from; empty: no choice."""


class Explainer(Protocol):
    """Saliency maps of a model."""

    @property
    def methods(self) -> Sequence[ExplainMethod]:
        """The methods that fit the model, the best first."""

    def __call__(
        self, image: Tensor, *, method: str, target: int, layer: int | None = None, head: int | None = None
    ) -> Tensor:
        """How much each pixel of a uint8 image C H W matters: float32 H W.

        Without a layer it is the last one; without a head, the mean of all.
        """


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """An engine, its explainer, and how often the model was loaded."""

    engine: Engine
    explainer: Explainer | None = None
    generation: int = 1
    opened: float = 0.0  # seconds since 1970

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what can be explained: classes, or numbers."""
        return self.engine.task.output_names


Opener = Callable[[], ServedModel]  # picklable: every worker opens the model itself


class ModelSlot:
    """Holds the model in use; a request keeps the model that it began with."""

    def __init__(self, opener: Opener) -> None:
        self._opener, self._lock = opener, threading.Lock()
        self.error: str | None = None  # why the last reload failed
        self.served = self._open(1)

    def reload(self) -> bool:
        """Opens the model again, tries it on a picture and uses it; the old one stays in use when that fails."""
        with self._lock:
            try:
                self.served = self._open(self.served.generation + 1)
            except Exception as error:  # whatever a damaged file or an engine raises
                self.error = str(error) or repr(error)
                return False
            self.error = None
            return True

    def _open(self, generation: int) -> ServedModel:
        served = self._opener()
        try_model(served.engine)  # this warms it up, too
        return replace(served, generation=generation, opened=time.time())
