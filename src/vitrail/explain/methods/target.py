"""Which output of a model is explained, and how its outputs become scores."""

import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError, nearest
from vitrail.explain.unwrap import backbone_of, unwrapped
from vitrail.models.backbone import Backbone
from vitrail.tasks.task import Outputs, Task

_BOX = re.compile(r"(^|:)box \d+$")  # the name of a box, or of one of many tasks
Scores = Callable[[Tensor, Tensor | None], Tensor]  # head outputs B K, and those of the whole images -> B K


def probabilities(outputs: Tensor, reference: Tensor | None = None) -> Tensor:
    """Softmax in float32 at least: the scores of a model without a task."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32)).softmax(dim=1)


class Target(NamedTuple):
    """The output of the head that is explained, for each image, and the scores that curves follow."""

    indices: Tensor  # B int64
    scores: Scores = probabilities
    reference: Tensor | None = None  # B K: head outputs of the whole images, where scores compare with them

    def output(self, outputs: Tensor) -> Tensor:
        """The explained output: B K -> B."""
        return outputs.gather(1, self.indices[:, None])[:, 0]

    def score(self, outputs: Tensor) -> Tensor:
        """The score of the explained output: B K -> B."""
        return self.scores(outputs, self.reference).gather(1, self.indices[:, None])[:, 0]

    def split(self, size: int) -> Iterable["Target"]:
        """The same for batches of images."""
        if self.reference is None:
            return (self._replace(indices=part) for part in self.indices.split(size))
        parts = zip(self.indices.split(size), self.reference.split(size), strict=True)
        return (self._replace(indices=indices, reference=reference) for indices, reference in parts)

    def repeat(self, times: int) -> "Target":
        """The same for images that are repeated as a whole."""
        reference = None if self.reference is None else self.reference.repeat(times, 1)
        return self._replace(indices=self.indices.repeat(times), reference=reference)


Ask = Target | int | str | Sequence[int | str] | Tensor | None  # an output by index or name, for all images or each


def target_name(task: Task, target: str | None, *, box: int | None) -> str | None:
    """The name of the output to explain: `target` itself, or that of a detector's box by its number."""
    if box is None:
        return target
    if target is not None:
        raise ConfigError(f"target {target!r} and box {box} cannot be used together; leave out one of them")
    boxes = [name for name in task.output_names if _BOX.search(name)]
    if not boxes:
        raise ConfigError(f"a model of task {task.config.kind!r} finds no boxes; use target instead of box")
    if not 0 <= box < len(boxes):
        raise ConfigError(f"box {box} is not allowed: the model finds boxes 0 to {len(boxes) - 1}")
    return boxes[box]


@torch.no_grad()
def targets(model: nn.Module, images: Tensor, ask: Ask = None, *, outputs: Outputs | None = None) -> Target:
    """The target of each image of a model or task: one for all, one each by index or name, or the model's answer.

    A task knows its answer, the names of its outputs and its scores; a model alone is read as a classifier. `outputs`
    are those of the task, if known.
    """
    backbone = backbone_of(model)
    check_images(backbone, images)
    if isinstance(ask, Target):
        return ask
    task = next((part for part in unwrapped(model).modules() if isinstance(part, Task)), None)
    scores: Scores = probabilities if task is None else task.scores
    reference = backbone(images) if task is not None and task.relative_scores else None
    if task is not None and (ask is None or (isinstance(ask, str) and not _is_index(ask, task.output_names))):
        return Target(task.explain_target(outputs or task.outputs(images), ask), scores, reference)
    if ask is None:
        logits: Tensor = backbone(images)
        return Target(logits.argmax(dim=1), scores)
    if isinstance(ask, Tensor):
        ask = ask.tolist()
    asked = list(ask) if isinstance(ask, Iterable) and not isinstance(ask, str) else [ask]
    if len(asked) not in (1, len(images)):
        raise ConfigError(f"there are {len(asked)} targets for {len(images)} images; give one for all, or one each")
    names = backbone.labels if task is None else task.output_names
    indices = [_index(one, backbone.config.num_classes, names) for one in asked]
    return Target(torch.tensor(indices * (len(images) // len(indices)), device=images.device), scores, reference)


def check_images(model: Backbone, images: Tensor) -> None:
    """Refuses images that the model cannot take, and an empty batch."""
    model.check(images)
    if not len(images):
        raise InputError("the batch is empty; give one or more images to explain")


def _is_index(asked: str, names: Sequence[str]) -> bool:
    return asked.isdecimal() and asked not in names


def _index(asked: int | str, count: int, names: Sequence[str] | None) -> int:
    if isinstance(asked, str):
        if names and asked in names:
            return list(names).index(asked)
        if not asked.isdecimal():
            raise ConfigError(
                f"the model has no output {asked!r}; {nearest(asked, names)}"
                if names
                else f"the model has no output {asked!r}: its {count} outputs have no names; use an index "
                f"from 0 to {count - 1}"
            )
        asked = int(asked)
    if isinstance(asked, bool) or not isinstance(asked, Integral):
        raise ConfigError(f"a target must be an index or a name, but is a {type(asked).__name__}")
    if not 0 <= asked < count:
        raise ConfigError(f"the model has no output {asked}; it has {count}, from 0 to {count - 1}")
    return int(asked)
