"""A tiny model ready to be shipped, and pictures to prove it on."""

from dataclasses import dataclass

import numpy as np
import torch
from registered import tiny
from torch import Tensor

from vitrail.data.augment import AugmentConfig
from vitrail.deploy.engine import Engine
from vitrail.tasks.classify import Classify
from vitrail.tasks.task import Task

LABELS = ("ant", "bee", "cat", "dog", "elk")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What `open_trained` gives, without a run behind it."""

    task: Task
    augment: AugmentConfig
    multi_label: bool = False
    about: str = "a tiny model for tests"


def opened(name: str = "vit_tiny_patch16", *, multi_label: bool = False, **changes: object) -> Opened:
    """A tiny model with random weights whose five classes have names."""
    torch.manual_seed(0)
    model = tiny(name, **changes)
    thresholds = (0.2, 0.4, 0.5, 0.6, 0.8) if multi_label else None
    task = Classify(model, classes=LABELS, multi_label=multi_label, thresholds=thresholds).eval()
    channels = model.config.channels
    augment = AugmentConfig(mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.3, 0.25)[:channels])
    return Opened(task=task, augment=augment, multi_label=multi_label)


def photos(count: int, *, channels: int = 3) -> list[Tensor]:
    """Smooth pictures uint8 C H W, each of another size."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for number in range(count):
        coarse = torch.rand(1, channels, 4, 5, generator=draw)
        size = (40 + 3 * (number % 5), 30 + 7 * (number % 4))
        smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[0]
        found.append((255 * smooth).to(torch.uint8))
    return found


class Skewed(Engine):
    """Answers as another engine does, with something added to some logits."""

    backend = "skewed"

    def __init__(self, other: Engine, add: object) -> None:
        super().__init__("nowhere.onnx", other.card)
        self.other, self.add = other, np.asarray(add, np.float32)

    def run(self, images: np.ndarray) -> np.ndarray:
        return self.other.run(images) + self.add
