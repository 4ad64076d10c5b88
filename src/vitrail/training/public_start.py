"""`--from auto`: public weights that suit the images, from the hub; without a network, those of the package."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitrail.data.dataset import Dataset
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.hub import locate
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.tasks.task import TaskConfig
from vitrail.training.first_model import SMALL, Sampled
from vitrail.training.first_try import OF_TRAINING

AUTO = "auto"  # a folder of that name is ./auto
RECOMMENDED = "hf-hub:facebook/dinov2-small"  # ViT-S/14, 22 M parameters, self-supervised on 142 M photographs
_SIZE = 224  # pixels: its own 518 cost six times as much
_OWN_WAY = {"freeze_until", "lora", "options", "probe", "fit_head"}


class PublicStart(NamedTuple):
    """Weights to start from, changes to the recipe, a note on the choice, and options of the task."""

    start: str
    changes: Mapping[str, Any]
    note: str
    task: Mapping[str, Any] = {}


def public_start(data: Dataset, seen: Sampled, changes: Mapping[str, Any], task: TaskConfig) -> PublicStart:
    """The weights for images like these; with them a linear head, unless the caller says how to train."""
    fitted = task.num_outputs(data.schema) > 0 and not (OF_TRAINING | _OWN_WAY) & changes.keys()
    head = {"probe": "linear"} if fitted else {}
    if 0 < max(seen.height, seen.width) <= SMALL:
        return PublicStart(PACKAGED, head, f"--from auto: images of up to {SMALL} pixels start from {PACKAGED}")
    try:
        locate(RECOMMENDED)
    except CheckpointError as error:
        return PublicStart(PHOTOS, head, f"--from auto: {error}; starts from {PHOTOS} instead")
    size = {} if "image_size" in changes else {"image_size": _SIZE}
    return PublicStart(RECOMMENDED, {**head, **size}, f"--from auto: {RECOMMENDED}, for photographs of this size")
