"""What a run of boxes, masks or depth does where nothing is named: a packaged network with a light head.

A new model needs hours on a CPU, and many more pictures, before it finds anything; docs/tasks.md has what was measured.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.dataset import Dataset
from vitrail.data.sources.opening import survey
from vitrail.data.sources.table import Wanted
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.hardware import device
from vitrail.packaged import PHOTOS
from vitrail.tasks.task import TaskConfig, infer
from vitrail.training.first_model import SMALL, Sampled, sample
from vitrail.training.first_try import default_on as plain_default_on

_STEP = 32  # pixels: the stride of the last level
_STRIDES = (8, 16, 32)  # of the levels that a detector reads
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
    """Weights to start from, changes to the recipe of fine-tuning, options of the task, and what that is in words."""

    start: str
    changes: Mapping[str, Any]
    task: Mapping[str, Any]
    about: str

    @property
    def note(self) -> str:
        """A line of the log."""
        return (
            f"no model was named: starts from {self.start}, with a small head unless task.head names another; --model "
            "and --from override it (docs/tasks.md)"
        )


def first_dense(data: Dataset, seen: Sampled, changes: Mapping[str, Any], task: TaskConfig) -> FirstDense | None:
    """The first try of tasks whose answers have a place in the image, alone or several on one backbone.

    None for other tasks, for images too small for the packaged network, and where the caller changes the model.
    """
    tasks: Mapping[str, TaskConfig] | None = getattr(task, "tasks", None)  # of many
    kinds = [one.kind for one in (tasks or {"": task}).values()]
    heads = [kind for kind in dict.fromkeys(kinds) if kind in HEADS]
    if not heads or _OWN & changes.keys() or max(seen.height, seen.width) <= SMALL:
        return None
    options = {"head": _head(task.kind, data)} if tasks is None else {"tasks": _of_many(tasks, data)}
    size = _size(seen, max((_queries(data) for kind in heads if kind == "detect"), default=0))
    epochs = max(_LEAST_EPOCHS, math.ceil(_IMAGES_SEEN / max(len(data), 1)))
    named = f"{' and '.join(_NAMES[one] for one in heads)} head{'s' * (len(heads) > 1)}"
    about = f"starts from {PHOTOS} with a small {named} at {size[0]} x {size[1]}"
    return FirstDense(PHOTOS, {**RECIPE, "image_size": size, "epochs": epochs}, options, about)


def first_dense_on(
    source: str | Path, *, val: str | Path | float | None = None, seed: int = 0, wanted: Wanted = Wanted(),  # noqa: B008
) -> FirstDense | None:  # fmt: skip
    """The first try on data that are named, for the task that they suggest."""
    train = survey(source, val=val, seed=seed, wanted=wanted).train
    return first_dense(train, sample(train), {}, infer(train.schema)()) if len(train.schema) == 1 else None


class Default(NamedTuple):
    """What a run does, the network that answers then, and what that network is built by and trained for, if known."""

    about: str
    network: str
    recipe: Mapping[str, Any] | None = None


def default_on(source: str | Path, *, wanted: Wanted = Wanted()) -> Default:  # noqa: B008
    """What a run on data does where nothing is named."""
    found = first_dense_on(source, wanted=wanted)
    if found is None:
        return Default(*plain_default_on(source, wanted=wanted))
    kind = infer(survey(source, wanted=wanted).train.schema).kind
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


def _size(seen: Sampled, queries: int) -> tuple[int, int]:
    """The size of the images, or a smaller one of the same shape, in whole steps; larger where queries need tokens."""
    longest = _LONGEST.get(_device_kind(), _LONGEST_ELSEWHERE)
    share = min(1.0, longest / max(seen.height, seen.width))
    height, width = (max(2, int(side * share / _STEP + 0.5)) * _STEP for side in (seen.height, seen.width))
    while sum((height // stride) * (width // stride) for stride in _STRIDES) < queries:
        height, width = height + _STEP, width + _STEP
    return height, width


def _device_kind() -> str:
    return device().type
