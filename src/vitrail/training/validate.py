"""Validation within a run: every process sees its part, all know the result."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.feeds.feed import Feed
from vitrail.hardware import Precision, autocast
from vitrail.tasks.task import Task
from vitrail.training.distributed import World


@torch.no_grad()  # not inference_mode, which sharded parameters do not survive
def validate(
    task: Task,
    feed: Feed,
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
        meter.update({name: values.float() for name, values in outputs.items()}, batch.targets)
    return world.merge(meter).compute()
