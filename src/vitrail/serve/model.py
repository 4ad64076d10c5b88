"""What the service needs of a model and of an explainer, and the slot that holds the model in use.

Engines and explainers come from outside, so that the service depends neither on how a model was exported nor on how it
is explained.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from vitrail.runs.trial import try_model
from vitrail.serve.cores import use_cores

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


_MAX_STUCK = 3  # reloads that did not end in time: each has a thread, and the memory of a model


class ModelSlot:
    """Holds the model in use; a request keeps the model that it began with.

    A reload may take `max_seconds`. Then its thread is left alone, since no thread can be stopped from outside, and the
    model that it may still open is dropped.
    """

    def __init__(self, opener: Opener, *, max_seconds: float = 300.0) -> None:
        self._opener, self._max_seconds, self._cores = opener, max_seconds, torch.get_num_threads()
        self._stuck: list[threading.Thread] = []
        self.error: str | None = None  # why the last reload failed
        self.served = self._open(1)

    async def reload(self) -> bool:
        """Opens the model again, tries it on a picture and uses it; the old one stays in use when that fails.

        Whoever calls this waits for the end of one reload before the next.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= _MAX_STUCK:
            self.error = f"{len(self._stuck)} earlier reloads have not ended; restart the service"
            return False
        opened: Future[ServedModel | str] = Future()
        opened.set_running_or_notify_cancel()  # from now on it cannot be cancelled: the thread may always set it
        generation = self.served.generation + 1
        # A daemon, and none of a pool: the end of the process waits for all others.
        thread = threading.Thread(target=self._reopen, args=(generation, opened), name="reloading", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._max_seconds):
                found = await asyncio.wrap_future(opened)
        except TimeoutError:
            self._stuck.append(thread)
            found = f"the model was not opened and tried within {self._max_seconds:g} s"
        if isinstance(found, str):
            self.error = found
            return False
        self.served, self.error = found, None
        return True

    def _reopen(self, generation: int, opened: "Future[ServedModel | str]") -> None:
        use_cores(self._cores)
        try:
            found: ServedModel | str = self._open(generation)
        except BaseException as error:  # whatever a damaged file or an engine raises
            found = str(error) or repr(error)
        opened.set_result(found)

    def _open(self, generation: int) -> ServedModel:
        served = self._opener()
        try_model(served.engine)  # this warms it up, too
        return replace(served, generation=generation, opened=time.time())
