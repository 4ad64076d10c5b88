"""Finds the backbone inside a task and inside the wrappers of torch.compile and distributed training."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from vitrail.errors import InputError
from vitrail.models.backbone import Backbone
from vitrail.tasks.task import Task


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile and distributed training."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a module, such as vitrail.create returns, but is a {type(model).__name__}")
    inner = model._modules.get("_orig_mod") or model._modules.get("module")
    return model if inner is None else unwrapped(inner)


def backbone_of(model: nn.Module) -> Backbone:
    """The backbone of a model or task; its call gives the outputs that are explained."""
    for part in unwrapped(model).modules():
        if isinstance(part, Task):
            return part.explained()
        if isinstance(part, Backbone):
            return part
    raise InputError(f"{type(model).__name__} contains no vitrail backbone; pass a model, or a task around one")


def is_compiled(model: nn.Module) -> bool:
    """Whether a model or a part of it is compiled, so that hooks inside it may not be called."""
    return any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in model.modules())


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Puts models into evaluation mode; afterwards every submodule is back in the mode it was in."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
