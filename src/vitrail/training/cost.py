"""What training a model on this machine costs: memory and speed, for the audit of data."""

import os
import time
from typing import NamedTuple

import torch

from vitrail.data.audit.doctor import Cost
from vitrail.hardware import Wanted, autocast, precision
from vitrail.models.backbone import Backbone
from vitrail.models.registry import create
from vitrail.profiling import describe, sketch
from vitrail.report import Facts

ADAM = 4  # weights, gradients and two moments
_TIMED = {"cpu": 4, "cuda": 64}  # images that a device's speed is measured on


class TrainingCost(NamedTuple):
    """The cost of a model, and the size of its images."""

    numbers: Cost
    image_size: tuple[int, int]


def training_cost(name: str, image_size: int | tuple[int, int] | None = None) -> TrainingCost:
    """The memory that training a named model takes on this machine: fixed, and for each image."""
    model = sketch(name) if image_size is None else sketch(name, image_size=image_size)
    totals = describe(model)["Totals"]
    assert isinstance(totals, Facts)  # noqa: S101  (describe writes it so)
    weights, activations = (int(totals.values[key] or 0) for key in ("weights", "activations"))
    numbers = Cost(model=name, fixed=ADAM * weights, per_image=activations, memory=device_memory())
    return TrainingCost(numbers, model.config.image_size)


def device_memory() -> int:
    """The bytes of memory of the GPU, else of this machine."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def training_speed(name: str, image_size: int | tuple[int, int] | None = None, *, device: torch.device) -> float:
    """Images per second of training a named model on a device: forward and backward passes, timed on a few images."""
    return step_speed(create(name) if image_size is None else create(name, image_size=image_size), device=device)


def step_speed(model: Backbone, *, device: torch.device, wanted: Wanted = "auto") -> float:
    """The same of a model, in a wanted precision."""
    model = model.to(device).train()
    config, chosen = model.config, precision(wanted, device)[0]
    count = _TIMED.get(device.type, _TIMED["cpu"])
    images = torch.zeros(count, config.channels, *config.image_size, device=device)
    seconds = 0.0
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        with autocast(device, chosen):
            loss = model(images).float().square().mean()
        loss.backward()
        loss.item()  # waits for the device
        seconds = time.perf_counter() - began
    return count / seconds
