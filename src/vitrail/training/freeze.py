"""What learns and what stays as it is."""

from typing import NamedTuple, TypeVar

from torch import nn

from vitrail.errors import ConfigError, nearest
from vitrail.layers.batch_norm import hold_still
from vitrail.report import show
from vitrail.tasks.task import Task

M = TypeVar("M", bound=nn.Module)


class Learning(NamedTuple):
    """How many numbers of a model learn, how many do not, and the names of the tensors on either side."""

    learning: int
    frozen: int
    learning_names: tuple[str, ...]
    frozen_names: tuple[str, ...]

    def __str__(self) -> str:
        total = self.learning + self.frozen
        told = f"{show(self.learning, 'si')} of {show(total, 'si')} parameters learn"
        if not self.frozen or not self.learning:
            return told
        return f"{told} ({show(self.learning / total, 'share')}), from {self.learning_names[0]} on"


def learning(model: nn.Module) -> Learning:
    """Which parameters of a model learn."""
    parameters = list(model.named_parameters())
    taught = [(name, parameter.numel()) for name, parameter in parameters if parameter.requires_grad]
    still = [(name, parameter.numel()) for name, parameter in parameters if not parameter.requires_grad]
    return Learning(
        sum(count for _, count in taught),
        sum(count for _, count in still),
        tuple(name for name, _ in taught),
        tuple(name for name, _ in still),
    )


def freeze_until(model: M, name: str) -> M:
    """Freezes, in place, everything that runs before a module such as "blocks.8"; it and all after it learn.

    Modules run in the order in which they were made: a contract of every backbone. Running statistics of what is
    frozen stay as they are, too.
    """
    root = model.backbone if isinstance(model, Task) else model
    modules = dict(root.named_modules())
    if not name or name not in modules:
        raise ConfigError(f"the model has no part {name!r} to freeze until; {nearest(name, _parts(modules))}")
    before = [part for part in list(modules)[: list(modules).index(name)] if part]
    for part in before:
        for parameter in modules[part].parameters(recurse=False):
            parameter.requires_grad_(False)
    hold_still(root)
    return model


def _parts(modules: dict[str, nn.Module]) -> list[str]:
    """Names near the surface: what people mean when they freeze."""
    return [name for name in modules if name and name.count(".") <= 1]
