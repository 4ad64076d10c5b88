"""Detectors, segmenters and depth models of Hugging Face as tasks that are ready for use."""

from collections.abc import Callable, Mapping
from pathlib import Path

from vitrail.config import apply
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.models.checkpoint.headed import Headed, load_headed
from vitrail.models.checkpoint.headed.processor import read_processing
from vitrail.models.heads import DeformableDetrConfig
from vitrail.runs.pictures import Pictures, pictures_of
from vitrail.tasks.depth import DepthConfig
from vitrail.tasks.detect import DetectConfig
from vitrail.tasks.segment import SegmentConfig
from vitrail.tasks.task import Task, TaskConfig

_MOST = 100  # boxes that Deformable DETR's post-processing keeps; that of others keeps one of each query


def _boxes(found: Headed) -> tuple[TaskConfig, Schema]:
    most = _MOST if isinstance(found.config, DeformableDetrConfig) else found.config.queries
    return DetectConfig(head=found.config, most=most), {BoxesTarget.field: BoxesTarget(classes=found.labels)}


def _masks(found: Headed) -> tuple[TaskConfig, Schema]:
    return SegmentConfig(head=found.config), {MaskTarget.field: MaskTarget(classes=found.labels)}


def _depth(found: Headed) -> tuple[TaskConfig, Schema]:
    return DepthConfig(head=found.config), {DepthTarget.field: DepthTarget()}


TASKS: Mapping[str, Callable[[Headed], tuple[TaskConfig, Schema]]] = {
    "detect": _boxes,
    "segment": _masks,
    "depth": _depth,
}


def open_head(path: Path, image_size: int | tuple[int, int] | None = None) -> tuple[Task, Preprocess, Pictures]:
    """The task of a checkpoint with a head, what makes its input of images, and what gives it whole pictures.

    Hugging Face's processors may give each picture a size of its own, as `Pictures` do. Elsewhere all have one size: by
    default that of a picture of 4 : 3. With an `image_size`, all pictures have that size everywhere.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    processing = read_processing(path, size)
    preprocess = processing.preprocess
    found = load_headed(path, image_size=preprocess.image_size)
    if processing.own_size is not None and not (processing.windows or processing.padded):
        found.backbone.config = apply(found.backbone.config, {"dynamic_size": True})
    config, schema = TASKS[found.task](found)
    task = config.build(found.backbone, schema)
    task.get_submodule("head").load_state_dict(found.head.state_dict())
    found.backbone.preprocess = preprocess
    return task, preprocess, pictures_of(task.eval(), processing)
