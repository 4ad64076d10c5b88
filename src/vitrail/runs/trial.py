"""A trial on one made picture: whether a model computes at all, before it is used or replaces another."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError


class TriedModel(Protocol):
    """A trained model or an engine."""

    @property
    def task(self) -> Any:
        """What outputs mean."""

    @property
    def preprocess(self) -> Preprocess:
        """What makes the input of images."""

    def outputs(self, images: Tensor) -> Mapping[str, Tensor]:
        """Uint8 B C *image_size -> B ... by name."""


def trial_picture(preprocess: Preprocess) -> Tensor:
    """The same for ever: slopes of colour with a dark square, uint8 1 C *image_size."""
    height, width = preprocess.image_size
    rows, columns = torch.arange(height)[:, None] * 255 // height, torch.arange(width) * 255 // width  # H 1, W
    shifts = 60 * torch.arange(preprocess.channels)[:, None, None]  # C 1 1
    picture = ((rows + columns) // 2 + shifts) % 256  # C H W
    picture[:, height // 4 : height // 2, width // 4 : width // 2] = 20
    return picture.to(torch.uint8)[None]


def try_model(model: TriedModel) -> dict[str, Tensor]:
    """The outputs for the trial picture; CheckpointError where they are not finite or do not fit the task."""
    outputs = dict(model.outputs(trial_picture(model.preprocess)))
    require_finite_outputs(outputs)
    if not outputs or any(values.shape[:1] != (1,) for values in outputs.values()):
        shapes = {name: tuple(values.shape) for name, values in outputs.items()}
        raise CheckpointError(f"the outputs of the model for one image have the shapes {shapes}; expected 1 row each")
    for name, values in outputs.items():
        if (count := model.task.width_of(name)) not in (None, values.shape[-1]):
            raise CheckpointError(f"the model has {values.shape[-1]} outputs; its task names {count}")
    (answer,) = model.task.decode(outputs)
    json.dumps(answer.to_json(), allow_nan=False)
    return outputs


def require_finite_outputs(outputs: Mapping[str, Tensor]) -> None:
    """CheckpointError where an output is NaN or infinite: no answer can be made of it."""
    for name, values in outputs.items():
        if not bool(torch.isfinite(values).all()):
            raise CheckpointError(f"the model computes {name} that are not finite (NaN or infinite)")
