"""Engines: one way to run a model, whatever it was made into.

engine = open_engine("dist/model.onnx")  # vitrail.deploy.artefact.opening
engine.predict("cat.jpg")  # as a trained model does
outputs = engine.outputs(engine.fitted([decode(data, channels=3)]))  # dict of Tensors B ...
engine.task.decode(outputs), engine.about

An engine has a task, a preprocessing and outputs, so `vitrail.runs.predict` and `vitrail.runs.evaluate` take it as they
take a trained model.
"""

import contextlib
import copy
import functools
import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.pixels import Frame, Pixels, frame
from vitrail.deploy.artefact.servable import Servable
from vitrail.errors import CheckpointError, InputError, reason
from vitrail.runs.evaluate import Evaluation, evaluate_on
from vitrail.runs.pictures import Pictures
from vitrail.runs.predict import Input, pixels, predict
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.answer import Prediction
from vitrail.tasks.task import Task

Array = np.ndarray[Any, Any]
Picture = Tensor | Array | Image.Image

# Weights become constants of the code; the candidates that were tried are not printed.
_INDUCTOR = {"freezing": True, "autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}


class Engine(ABC):
    """A model ready to run; may be called from several threads."""

    half = dynamic = False  # bf16 for what is not int8; int8 without calibration

    def __init__(self, source: str | Path, card: Card, *, threads: int | None = None) -> None:
        self.source, self.card, self.threads = str(source), card, threads  # None: the backend decides

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.about}; {self.backend})"

    @property
    def task(self) -> Task:
        """What outputs mean; it has no model."""
        return self._task

    @functools.cached_property
    def _task(self) -> Task:
        return self.card.task()

    @property
    def preprocess(self) -> Preprocess:
        """What makes the model's input of images."""
        return self.card.preprocess

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model works at; images may have any."""
        return self.preprocess.image_size

    @property
    def about(self) -> str:
        """The model in one sentence."""
        return self.card.about

    @property
    @abstractmethod
    def backend(self) -> str:
        """Library and precision: "ONNX Runtime 1.23, int8"."""

    @abstractmethod
    def run(self, images: Array) -> dict[str, Array]:
        """The graph with its own preprocessing: uint8 B H W C of one size, any -> float32 B ... by name."""

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs of images that `preprocess.fit` made: uint8 B C *image_size -> float32 B ... by name."""
        framed = self._framed(images.cpu())
        try:
            found = self.run(np.ascontiguousarray(framed.permute(0, 2, 3, 1).numpy()))  # B H W C
        except RuntimeError as error:
            size = " x ".join(map(str, framed.shape[2:]))
            raise CheckpointError(f"{self.source} cannot compute images of {size}: {reason(error):.300}") from error
        return {name: torch.from_numpy(values).to(images.device) for name, values in found.items()}

    def predict(
        self, inputs: Input | Iterable[Input], *, top: int = 5, tile: int | None = None, draw: str | Path | None = None
    ) -> list[Prediction]:
        """Answers for files, folders, PIL images, arrays and tensors, as those of a trained model."""
        return predict(self, inputs, top=top, tile=tile, draw=draw)

    def evaluate(self, data: str | Path | Dataset, *, batch_size: int = 256) -> Evaluation:
        """Metrics on labelled images, as those of a trained model."""
        return evaluate_on(self, data, batch_size=batch_size)

    def fitted(self, images: Sequence[Picture] | Tensor) -> Tensor:
        """Images of any size at the model's, uint8 B C *image_size: Tensors C H W, a batch, arrays, PIL images."""
        if isinstance(images, Tensor) and images.ndim == 4:
            return self.preprocess.fit(images.cpu())[0]
        if not len(images):
            raise InputError("no images were given; expected one or more")
        return torch.cat([self.preprocess.fit(pixels(image)[None])[0] for image in images])

    @functools.cached_property
    def _frame(self) -> Frame:
        return Frame(*self.image_size, 0, 0) if self.card.step is not None else frame(self.preprocess)

    def _framed(self, images: Tensor) -> Tensor:
        """Fitted images on a canvas of which the graph cuts them out again: B C *image_size -> B C H W."""
        height, width, top, left = self._frame
        right, below = width - left - images.shape[3], height - top - images.shape[2]
        return F.pad(images, (left, right, top, below)) if (height, width) != self.image_size else images


class TorchEngine(Engine):
    """A trained model as it is, on the device where it is; all other engines are compared with it."""

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__(trained.source, Card.of(trained))
        self.trained = trained

    @property
    def task(self) -> Task:
        """The task with its model."""
        return self.trained.task

    @property
    def pictures(self) -> Pictures | None:
        """What gives the model whole pictures at sizes of their own."""
        return self.trained.pictures

    @functools.cached_property
    def module(self) -> Servable:
        """The model with its preprocessing inside; Unsupported where that cannot be."""
        return servable(self.trained)

    @property
    def backend(self) -> str:
        """Library and precision."""
        return f"torch {torch.__version__}, eager {self.card.precision} on {self.trained.device}"

    @torch.inference_mode()
    def run(self, images: Array) -> dict[str, Array]:
        """Uint8 B H W C -> B ... by name."""
        pixels = self.module.pixels(torch.from_numpy(images))  # on the CPU: its constants are
        return _arrays(self.module.model(pixels.to(self.trained.device)))

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Uint8 B C *image_size -> B ... by name, by the preprocessing itself."""
        found = self.task.graph(self.trained.outputs(images))
        return {name: values.to(images.device) for name, values in found.items()}


class CompiledEngine(TorchEngine):
    """A trained model compiled for this processor: the first run of each batch size takes a minute.

    The preprocessing is not compiled and stays in float32; `half` runs the model in bf16.
    """

    def __init__(self, trained: TrainedModel, *, half: bool = False) -> None:
        super().__init__(trained)
        self.half, self.inductor = half, importlib.import_module("torch._inductor.config")
        # A copy, since weights are cast and frozen into the code, and the trained model may still be in use.
        model = copy.deepcopy(self.module.model)
        model.task.backbone.to(torch.bfloat16 if half else torch.float32)
        self.compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)

    @property
    def backend(self) -> str:
        """Library and precision."""
        return f"torch {torch.__version__}, compiled {'bf16' if self.half else 'float32'}"

    @torch.inference_mode()
    def run(self, images: Array) -> dict[str, Array]:
        """Uint8 B H W C -> B ... by name."""
        pixels = self.module.pixels(torch.from_numpy(images))
        with quiet(), self.inductor.patch(**_INDUCTOR):
            return _arrays(self.compiled(pixels.bfloat16() if self.half else pixels))

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Uint8 B C *image_size -> B ... by name."""
        return Engine.outputs(self, images)


def servable(trained: TrainedModel) -> Servable:
    """A trained model with its preprocessing inside, in evaluation mode."""
    return Servable(trained.task, Pixels(trained.preprocess)).eval()


def in_batches(engine: Engine, images: Array, batch: int) -> dict[str, Array]:
    """The outputs of all images, a batch at a time."""
    return joined([engine.run(images[start : start + batch]) for start in range(0, len(images), batch)])


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Outputs of several batches as those of one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def part_of(outputs: Mapping[str, Array], rows: slice) -> dict[str, Array]:
    """The outputs of some images."""
    return {name: values[rows] for name, values in outputs.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences torch's own warnings while it exports, compiles and loads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _arrays(outputs: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: values.float().cpu().numpy() for name, values in outputs.items()}
