"""Which parameters are trained and which are frozen."""

from typing import NamedTuple, TypeVar

from torch import nn

from vitrail.errors import ConfigError, nearest
from vitrail.layers.batch_norm import freeze_statistics
from vitrail.report import show
from vitrail.tasks.task import Task

M = TypeVar("M", bound=nn.Module)


class Trainable(NamedTuple):
    """How many parameters of a model are trained, how many are frozen, and the names of the trained tensors."""

    trained: int
    frozen: int
    trained_names: tuple[str, ...]

    def __str__(self) -> str:
        total = self.trained + self.frozen
        text = f"trainable parameters: {show(self.trained, 'si')} of {show(total, 'si')}"
        if not self.frozen or not self.trained:
            return text
        return f"{text} ({show(self.trained / total, 'share')}), from {self.trained_names[0]} on"


def trainable(model: nn.Module) -> Trainable:
    """Which parameters of a model are trained."""
    parameters = list(model.named_parameters())
    free = [(name, parameter.numel()) for name, parameter in parameters if parameter.requires_grad]
    trained = sum(count for _, count in free)
    frozen = sum(parameter.numel() for _, parameter in parameters) - trained
    return Trainable(trained, frozen, tuple(name for name, _ in free))


def freeze_until(model: M, name: str) -> M:
    """Freezes, in place, everything that runs before a module such as "blocks.8"; the rest is trained.

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
    freeze_statistics(root)
    return model


def _parts(modules: dict[str, nn.Module]) -> list[str]:
    """Names near the surface: what people mean when they freeze."""
    return [name for name in modules if name and name.count(".") <= 1]
