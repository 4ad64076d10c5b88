"""Training that starts from a detector, segmenter or depth model of Hugging Face: its backbone, and its head too."""

from pathlib import Path
from typing import Any

import torch

from vitrail.config import apply
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint.headed import has_head, load_headed
from vitrail.models.checkpoint.headed.processor import read_processing
from vitrail.models.checkpoint.hub import locate
from vitrail.runs.headed import TASKS
from vitrail.runs.paths import checkpoint_path
from vitrail.runs.record import is_run
from vitrail.tasks.task import Task, TaskConfig
from vitrail.training.task_choice import Spec


def headed_path(start: str | Path | None) -> Path | None:
    """The folder or file of a model with a head, where that is what training starts from."""
    if start is None:
        return None
    path = checkpoint_path(start)
    return local if not is_run(path) and has_head(local := locate(path)) else None


def headed_backbone(path: Path, image_size: int | tuple[int, int] | None) -> Backbone:
    """The backbone of a model with a head, with the preprocessing of its processor at one size for all images."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    preprocess = read_processing(path, size).preprocess
    backbone = load_headed(path, image_size=preprocess.image_size).backbone
    backbone.preprocess = preprocess
    return backbone


def with_head(
    chosen: TaskConfig, notes: list[str], spec: Spec, start: str | Path | None
) -> tuple[TaskConfig, list[str]]:
    """The task with the head that it starts from, where that is for the same task and none was asked for."""
    path = headed_path(start)
    if path is None or "head" in {**spec.defaults, **spec.options}:
        return chosen, notes
    found = load_headed(path)
    theirs: Any = TASKS[found.task](found)[0]
    if theirs.kind != chosen.kind:
        return chosen, [
            *notes,
            f"the head of {start} is for task {theirs.kind!r} and is left out: task {chosen.kind!r}",
        ]
    note = f"starts with the head of {start} too ({theirs.head.kind}); what depends on other classes is new"
    return apply(chosen, {"head": theirs.head}), [*notes, note]


@torch.no_grad()
def copy_head(task: Task, start: str | Path | None) -> None:
    """Copies the tensors of the head that a run starts from; those of another shape, for other classes, stay new."""
    path = headed_path(start)
    if path is None:
        return
    found = load_headed(path)
    theirs: Any = TASKS[found.task](found)[0]
    if getattr(task.config, "head", None) != theirs.head or task.config.kind != theirs.kind:
        return
    mine = task.get_submodule("head").state_dict()
    for name, tensor in found.head.state_dict().items():
        if name in mine and mine[name].shape == tensor.shape:
            mine[name].copy_(tensor)
