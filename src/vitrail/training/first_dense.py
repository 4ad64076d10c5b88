"""What a run of boxes, masks or depth does where nothing is named: a packaged network with a light head.

A new model needs hours on a CPU, and many more pictures, before it finds anything; docs/tasks.md has what was measured.
Images too small for that network get a new model, with a light head too: one of full size needs gigabytes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from vitrail.data.dataset import Dataset
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.packaged import PHOTOS
from vitrail.tasks.task import TaskConfig, infer
from vitrail.training.first_model import FOR_SMALL, SMALL, Sampled, sample, size_for_small
from vitrail.training.first_try import default_on as plain_default_on

_STEP = 32  # pixels: the stride of the last level
_STRIDES = (8, 16, 32)  # of the levels that a detector reads
_PATCH = 4  # pixels: that of a new model for small images
_STRIDES_OF_SMALL = (2, 4, 8)
_LONGEST = {"cpu": 320}  # pixels of the longer side, by the kind of device
_LONGEST_ELSEWHERE = 640
_QUERIES = 100
_IMAGES_SEEN = 2400  # at least
_LEAST_EPOCHS = 20
_OWN = {"options", "freeze_until", "lora", "probe", "fit_head"}  # a caller who changes these decides the model
HEADS: Mapping[str, Mapping[str, Any]] = {
    "detect": {"kind": "rt_detr", "decoder_depth": 3, "dim": 128, "hidden": 512, "expansion": 0.5},
    "segment": {"kind": "unet"},
    "depth": {"kind": "dpt", "dim": 128},
}
SMALL_HEAD = "small-head"  # what advice calls it
_NAMES = {"detect": "RT-DETR", "segment": "U-Net", "depth": "DPT"}
RECIPE: Mapping[str, Any] = {
    "batch_size": 8,
    "optimiser": {"lr": 1e-3},
    "schedule": {"warmup_epochs": 1.0},
    "augment": {"crop": "jitter", "zoom": (0.8, 1.25)},
    "mix": {"mixup": 0.0, "cutmix": 0.0},
    "ema": 0.99,
    "early_stop": None,
}


class FirstDense(NamedTuple):
    """Weights to start from, changes to the recipe, options of the task, that in words, and queries of a detector."""

    start: str | None  # None for a new model
    changes: Mapping[str, Any]
    task: Mapping[str, Any]
    about: str
    queries: int = 0

    @property
    def note(self) -> str:
        """A line of the log."""
        if self.start is None:
            return (
                f"no model was named, and images of up to {SMALL} pixels are too small for {PHOTOS}: {self.about}, "
                "unless task.head names another; --model and --from override it (docs/tasks.md)"
            )
        return (
            f"no model was named: starts from {self.start}, with a small head unless task.head names another; --model "
            "and --from override it (docs/tasks.md)"
        )


def first_dense(
    data: Dataset, seen: Sampled, changes: Mapping[str, Any], task: TaskConfig, *, device: torch.device
) -> FirstDense | None:
    """The first try of tasks whose answers have a place in the image, alone or several on one backbone.

    A new model for images too small for the packaged network. None for other tasks, and where the caller changes the
    model.
    """
    tasks: Mapping[str, TaskConfig] | None = getattr(task, "tasks", None)  # of many
    kinds = [one.kind for one in (tasks or {"": task}).values()]
    heads = [kind for kind in dict.fromkeys(kinds) if kind in HEADS]
    if not heads or _OWN & changes.keys() or not seen.height:
        return None
    options = {"head": _head(task.kind, data)} if tasks is None else {"tasks": _of_many(tasks, data)}
    named = f"{' and '.join(_NAMES[one] for one in heads)} head{'s' * (len(heads) > 1)}"
    queries = _queries(data) if "detect" in heads else 0
    if max(seen.height, seen.width) <= SMALL:
        about = f"a new {FOR_SMALL} with {'a ' * (len(heads) == 1)}small {named}"
        return FirstDense(None, enlarged(size_for_small(seen), queries), options, about, queries)
    size = _size(seen, queries, device)
    epochs = max(_LEAST_EPOCHS, math.ceil(_IMAGES_SEEN / max(len(data), 1)))
    about = f"starts from {PHOTOS} with a small {named} at {size[0]} x {size[1]}"
    return FirstDense(PHOTOS, {**RECIPE, "image_size": size, "epochs": epochs}, options, about, queries)


def first_dense_on(data: Dataset, *, device: torch.device) -> FirstDense | None:
    """The first try on training images, for the task that they suggest."""
    if len(data.schema) != 1:
        return None
    return first_dense(data, sample(data), {}, infer(data.schema)(), device=device)


class Default(NamedTuple):
    """What a run does, the network that answers then, and what that network is built by and trained for, if known."""

    about: str
    network: str
    recipe: Mapping[str, Any] | None = None


def default_on(data: Dataset, *, device: torch.device) -> Default:
    """What a run on training images does where nothing is named."""
    found = first_dense_on(data, device=device)
    if found is None or found.start is None:
        about, network = plain_default_on(data, device=device)
        return Default(about if found is None else found.about, network)
    kind = infer(data.schema).kind
    sizes = {name: found.changes[name] for name in ("image_size", "epochs")}
    return Default(found.about, SMALL_HEAD, {"start": found.start, **sizes, "task": {"kind": kind, **found.task}})


def over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options with those of the caller over them, in nested ones too."""
    found = dict(base)
    for name, value in changes.items():
        before = found.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    return found


def _head(kind: str, data: Dataset) -> dict[str, Any]:
    """The options of a head; a detector gets more queries where a picture has more objects."""
    head = dict(HEADS[kind])
    if kind == "detect":
        head["queries"] = _queries(data)
    return head


def _queries(data: Dataset) -> int:
    """As many hundreds as the image with the most objects needs."""
    most = max((target.most for target in data.schema.values() if isinstance(target, BoxesTarget)), default=0)
    return _QUERIES * max(1, math.ceil(most / _QUERIES))


def _of_many(tasks: Mapping[str, TaskConfig], data: Dataset) -> dict[str, Any]:
    return {name: {"head": _head(one.kind, data)} if one.kind in HEADS else {} for name, one in tasks.items()}


def _size(seen: Sampled, queries: int, device: torch.device) -> tuple[int, int]:
    """The size of the images, or a smaller one of the same shape, in whole steps; larger where queries need tokens."""
    longest = _LONGEST.get(device.type, _LONGEST_ELSEWHERE)
    share = min(1.0, longest / max(seen.height, seen.width))
    height, width = (max(2, int(side * share / _STEP + 0.5)) * _STEP for side in (seen.height, seen.width))
    return _with_tokens((height, width), queries, _STEP, _STRIDES)


def enlarged(own: tuple[int, int], queries: int) -> dict[str, Any]:
    """A larger size of small images, where a network for these would have fewer tokens than there are queries."""
    size = _with_tokens(own, queries, _PATCH, _STRIDES_OF_SMALL)
    return {} if size == own else {"image_size": size}


def _with_tokens(size: tuple[int, int], queries: int, step: int, strides: Sequence[int]) -> tuple[int, int]:
    """The size, or a larger one by whole steps whose levels have a token for each query."""
    height, width = size
    while sum((height // stride) * (width // stride) for stride in strides) < queries:
        height, width = height + step, width + step
    return height, width
