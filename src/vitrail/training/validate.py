"""Validation within a run: every process sees its part, all know the result."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.batches import Batches
from vitrail.hardware import Precision, autocast
from vitrail.tasks.task import Task
from vitrail.training.distributed import World


@torch.no_grad()  # not inference_mode, which sharded parameters do not survive
def validate(
    task: Task,
    feed: Batches,
    prepare: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
    precision: Precision,
    world: World,
) -> Mapping[str, Any]:
    """The task's metrics over all batches of all processes; the task is left in evaluation mode."""
    task.eval()
    meter = task.metrics()
    for batch in feed.epoch(0):
        with autocast(device, precision):
            outputs = task.outputs(prepare(batch.images))
        meter.update(outputs.float(), batch.labels)
    return world.merge(meter).compute()


def numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers among some results, which may hold tensors of several, too."""
    return {
        name: float(value)
        for name, value in results.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.ndim == 0)
    }
