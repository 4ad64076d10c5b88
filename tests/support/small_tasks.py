"""Tasks around tiny models, with random weights."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from support.registered import tiny
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget, Schema
from vitrail.models.backbone import Backbone
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.regress import Regress, RegressConfig
from vitrail.tasks.task import Task

CLASSES = ("ant", "bee", "cat", "dog", "elk")


def class_schema(classes: Sequence[str] = CLASSES, *, multi_label: bool = False) -> Schema:
    """One field: a class, or several labels."""
    kind = LabelsTarget if multi_label else ClassTarget
    return {kind.field: kind(classes=tuple(classes))}


def classifier(
    model: Backbone | None = None,
    classes: Sequence[str] = CLASSES,
    *,
    multi_label: bool = False,
    thresholds: Sequence[float] | None = None,
    **options: Any,
) -> Any:
    """A classifier of one class or of several labels an image; keywords are options of the task."""
    task = ClassifyConfig(**options).build(model or tiny(), class_schema(classes, multi_label=multi_label))
    if thresholds is not None:
        task.load_state({"thresholds": list(thresholds)})
    return task


def as_task(model: Task | Backbone) -> Task:
    """The task itself, or a classifier of a model's numbered classes."""
    if isinstance(model, Task):
        return model
    return classifier(model, tuple(map(str, range(model.config.num_classes))))


def regressor(names: Sequence[str] = ("x", "y"), model: Backbone | None = None, **options: Any) -> Regress:
    """A task of numbers; keywords are options of the task."""
    target = NumbersTarget(names=tuple(names))
    return RegressConfig(**options).build(model or tiny(num_classes=len(names)), {target.field: target})


def logits(task: Any, images: Tensor) -> Tensor:
    """The logits of a classifier."""
    return task.outputs(images)["logits"]
