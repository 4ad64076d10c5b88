"""`--from auto`: public weights that suit the images, from the hub; without a network, those of the package."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from vitrail.data.dataset import Dataset
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.hub import locate
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.tasks.task import TaskConfig
from vitrail.training.first_dense import enlarged, first_dense
from vitrail.training.first_model import SMALL, Sampled
from vitrail.training.first_try import OF_TRAINING, first_try_for

AUTO = "auto"  # a folder of that name is ./auto
RECOMMENDED = "hf-hub:facebook/dinov2-small"  # ViT-S/14, 22 M parameters, self-supervised on 142 M photographs
_SIZE = 224  # pixels: its own 518 cost six times as much
_SIZE_OF_PACKAGED = (32, 32)  # pixels, of the network for small images
_OWN_WAY = {"freeze_until", "lora", "options", "probe", "fit_head"}


class PublicStart(NamedTuple):
    """Weights to start from, changes to the recipe, a note on the choice, options of the task, and other sizes."""

    start: str | None  # None for a new model
    changes: Mapping[str, Any]
    note: str
    task: Mapping[str, Any] = {}
    sizes: tuple[int, ...] = ()


def public_start(
    data: Dataset, seen: Sampled, changes: Mapping[str, Any], task: TaskConfig, *, device: torch.device
) -> PublicStart:
    """The weights for images like these; with them a linear head, unless the caller says how to train.

    Where public ones are not needed or not there, what a run without --from would begin with.
    """
    small = 0 < max(seen.height, seen.width) <= SMALL
    fitted = task.num_outputs(data.schema) > 0 and not (OF_TRAINING | _OWN_WAY) & changes.keys()
    head = {"probe": "linear"} if fitted else {}
    if (why := f"images of up to {SMALL} pixels need no public weights" if small else _missing()) is None:
        size = {} if "image_size" in changes else {"image_size": _SIZE}
        return PublicStart(RECOMMENDED, {**head, **size}, f"--from auto: {RECOMMENDED}, for photographs of this size")
    dense = first_dense(data, seen, changes, task, device=device)
    if dense is not None and dense.start is not None:
        return PublicStart(dense.start, dense.changes, f"--from auto: {why}; {dense.note}", dense.task)
    if (first := first_try_for(data, seen, changes, task, device=device)) is not None:
        note = f"--from auto: {why}; {first.note}"
        return PublicStart(first.setting.start, first.setting.changes, note, sizes=first.sizes)
    start = PACKAGED if small else PHOTOS
    note = f"--from auto: {why}; starts from {start}"
    if dense is None:
        return PublicStart(start, head, note)
    return PublicStart(start, {**head, **enlarged(_SIZE_OF_PACKAGED, dense.queries)}, note, dense.task)


def _missing() -> str | None:
    """Why the public weights are not there; None where they are."""
    try:
        locate(RECOMMENDED)
    except CheckpointError as error:
        return str(error)
    return None
