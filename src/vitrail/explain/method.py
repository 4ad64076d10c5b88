"""The contract of every saliency method, and which class it explains."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.errors import ConfigError, InputError, nearest
from vitrail.models.backbone import Backbone

Target = int | str | Sequence[int | str] | Tensor | None


class Method(Choice):
    """How much each pixel matters for what a model says."""

    targeted: ClassVar[bool] = True  # whether the map belongs to one class

    @abstractmethod
    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """Images B C H W and classes B -> B H W; the model is in evaluation mode, and gradients are on."""

    def refusal(self, model: Backbone) -> str | None:
        """Why the method makes no sense for a model, in one sentence; None where it does."""
        if self.targeted and not model.config.num_classes:
            return f"{self.kind} explains a class, and the model has no head (num_classes is 0)"
        return None


def score(model: Backbone, images: Tensor, target: Tensor) -> Tensor:
    """The logit of one class for each image: B C H W and B -> B."""
    logits: Tensor = model(images)
    return logits.gather(1, target[:, None])[:, 0]


def probability(model: Backbone, images: Tensor, target: Tensor) -> Tensor:
    """How likely the model finds one class for each image, among all: B C H W and B -> B, in float32 at least."""
    logits: Tensor = model(images)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return exact.softmax(dim=1).gather(1, target[:, None])[:, 0]


def check(model: Backbone, images: Tensor) -> None:
    """Refuses images that the model cannot take, and none at all."""
    model.check(images)
    if not len(images):
        raise InputError("there are no images to explain: the batch is empty")


@torch.no_grad()
def classes(model: Backbone, images: Tensor, target: Target = None) -> Tensor:
    """The class to explain for each image, B: one for all, one each by number or name, or those that are predicted."""
    check(model, images)
    count, batch = model.config.num_classes, len(images)
    if target is None:
        predicted: Tensor = model(images)
        return predicted.argmax(dim=1)
    if isinstance(target, Tensor):
        target = target.tolist()
    named = list(target) if isinstance(target, Iterable) and not isinstance(target, str) else [target]
    if len(named) not in (1, batch):
        raise ConfigError(f"there are {len(named)} classes for {batch} images; give one for all, or one each")
    numbers = [_number(name, count, model.labels) for name in named]
    return torch.tensor(numbers * (batch // len(numbers)), device=images.device)


def _number(name: int | str, count: int, labels: Sequence[str] | None) -> int:
    if isinstance(name, str):
        if labels and name in labels:
            return list(labels).index(name)
        if not name.isdecimal():
            raise ConfigError(
                f"there is no class {name!r}; {nearest(name, labels)}"
                if labels
                else f"there is no class {name!r}: the model does not know the names of its {count} classes, "
                f"only their numbers from 0 to {count - 1}"
            )
        name = int(name)
    if isinstance(name, bool) or not isinstance(name, Integral):
        raise ConfigError(f"a class is given as a {type(name).__name__}; give its number, or its name")
    if not 0 <= name < count:
        raise ConfigError(f"there is no class {name}; the model has {count}, from 0 to {count - 1}")
    return int(name)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each of its parts is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
