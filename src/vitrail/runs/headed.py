"""Detectors, segmenters and depth models of Hugging Face as tasks that are ready for use."""

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitrail.config import apply
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.headed import Headed, load_headed
from vitrail.models.checkpoint.pixels import PROCESSOR
from vitrail.strict_json import read_json
from vitrail.tasks.depth import DepthConfig
from vitrail.tasks.detect import DetectConfig
from vitrail.tasks.segment import SegmentConfig
from vitrail.tasks.task import Task, TaskConfig

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_MAX_SIDE = 2**12  # pixels of an image; a backbone has positions for all of it
_USUAL = 4 / 3  # the width over the height of a picture, where a processor keeps the sides' ratio


def _boxes(found: Headed) -> tuple[TaskConfig, Schema]:
    return DetectConfig(head=found.config), {BoxesTarget.field: BoxesTarget(classes=found.labels)}


def _masks(found: Headed) -> tuple[TaskConfig, Schema]:
    return SegmentConfig(head=found.config), {MaskTarget.field: MaskTarget(classes=found.labels)}


def _depth(found: Headed) -> tuple[TaskConfig, Schema]:
    return DepthConfig(head=found.config), {DepthTarget.field: DepthTarget()}


TASKS: Mapping[str, Callable[[Headed], tuple[TaskConfig, Schema]]] = {
    "detect": _boxes,
    "segment": _masks,
    "depth": _depth,
}


def open_head(path: Path, image_size: int | tuple[int, int] | None = None) -> tuple[Task, Preprocess]:
    """The task of a checkpoint with a head, and what makes its input of pictures.

    Hugging Face resizes a picture to a size of its own; here all are resized and padded to one size. By default that
    is the size that a picture of 4 : 3 has there.
    """
    about = _processor(path)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size or _size(about, path)
    found = load_headed(path, image_size=size)
    config, schema = TASKS[found.task](found)
    task = config.build(found.backbone, schema)
    task.get_submodule("head").load_state_dict(found.head.state_dict())
    mean, std = (about.get(f"image_{name}") or _IMAGENET[name] for name in ("mean", "std"))
    options: dict[str, Any] = {"image_size": found.backbone.config.image_size, "mean": mean, "std": std, "like": "hf"}
    preprocess = apply(Preprocess(), options | {"interpolation": "bilinear"} | dict(config.preprocess))
    found.backbone.preprocess = preprocess
    return task, preprocess


def _processor(path: Path) -> Mapping[str, Any]:
    """The preprocessor_config.json beside the weights; empty where there is none."""
    file = (path if path.is_dir() else path.parent) / PROCESSOR
    if not file.is_file():
        return {}
    try:
        about = read_json(file)
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    return about if isinstance(about, dict) else {}


def _size(about: Mapping[str, Any], path: Path) -> tuple[int, int] | None:
    """The size of most pictures after a processor; None where the file says none."""
    size = about.get("size")
    if not isinstance(size, dict) or not {"height", "shortest_edge"} & size.keys():
        return None
    sides = [size.get(name) for name in (("height", "width") if "height" in size else ("shortest_edge",))]
    sides += [size["longest_edge"]] if size.get("longest_edge") else []
    if not all(type(side) is int and 0 < side <= _MAX_SIDE for side in sides):
        raise CheckpointError(
            f"{path}: {PROCESSOR} says size = {reprlib.repr(size)}; sides are 1 to {_MAX_SIDE} pixels"
        )
    if "height" in size:
        return size["height"], size["width"]
    short = size["shortest_edge"]
    return short, min(int(short * _USUAL), size.get("longest_edge") or short * 2)
