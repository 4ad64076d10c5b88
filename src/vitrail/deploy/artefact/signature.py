"""The inputs and outputs of an artefact's graph, held against its task before the first image."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.errors import CheckpointError
from vitrail.tasks.task import Task

IMAGES = "images"
_LEAST = 2  # axes of an output: images, and at least one number for each
_MANY = 5  # names in an error


class TensorInfo(NamedTuple):
    """An input or output: `axes` is None where their number is free, `last` where the length of the last one is."""

    name: str
    dtype: str  # as numpy writes it, where the format has the type in common with it
    axes: int | None
    last: int | None = None


def check_signature(path: Path, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], *, task: Task) -> None:
    """CheckpointError where a graph does not take images as uint8 B H W C, or lacks an output that its task reads."""
    if len(inputs) != 1 or inputs[0].name != IMAGES or inputs[0].dtype != "uint8" or inputs[0].axes not in (4, None):
        raise CheckpointError(
            f"{path} has the inputs {_listed(inputs)}; expected one, {IMAGES!r}, of uint8 with 4 axes (B H W C)"
        )
    found = {one.name: one for one in outputs}
    for name, axes in task.answered_by.items():
        if name not in found or found[name].axes not in (axes, None) or found[name].dtype != "float32":
            raise CheckpointError(
                f"{path} has the outputs {_listed(outputs)}; task {task.config.kind!r} needs {name!r} of float32 with "
                f"{axes} axes"
            )
        width, count = found[name].last, task.width_of(name)
        if count is not None and width not in (count, None):
            raise CheckpointError(f"{path} computes {width} numbers as {name!r}; its task names {count}")
    if any(one.axes is not None and one.axes < _LEAST for one in outputs):
        raise CheckpointError(f"{path} has the outputs {_listed(outputs)}; expected a row for each image")


def _listed(infos: Sequence[TensorInfo]) -> str:
    named = [f"{one.name[:40]!r} ({one.dtype[:40]}, {one.axes} axes)" for one in infos[:_MANY]]
    return ", ".join(named) + (f" and {len(infos) - _MANY} more" if len(infos) > _MANY else "") or "(none)"
