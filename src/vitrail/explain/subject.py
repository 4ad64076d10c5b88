"""The backbone that is looked into, inside a task and the wrappers of torch.compile and distributed training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitrail.errors import InputError
from vitrail.explain.layer import eager
from vitrail.models.backbone import Backbone


def subject(model: nn.Module) -> Backbone:
    """The backbone of a model or task."""
    for part in eager(model).modules():
        if isinstance(part, Backbone):
            return part
    raise InputError(f"{type(model).__name__} has no backbone of vitrail inside; give a model, or a task around one")


@contextmanager
def at_rest(*models: Backbone) -> Iterator[None]:
    """Models in evaluation mode and without gradients; afterwards each is in the mode in which it came."""
    learning = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for model, mode in zip(models, learning, strict=True):
            model.train(mode)
