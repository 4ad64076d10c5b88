"""Images of any small dataset for experiments that train, and how to train on them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Config, Count, Positive, Rate
from vitrail.data.dataset import Dataset
from vitrail.data.sources.opening import find
from vitrail.errors import DataError
from vitrail.lab import small_training
from vitrail.lab.small_training import Draw, Labelled, accuracy, outputs


@dataclass(frozen=True, kw_only=True)
class Fit(Config):
    """How to train; `precision` is that of a GPU, a CPU has float32."""

    steps: Count = 300
    batch: Count = 64
    rate: Positive = 1e-3
    weight_decay: float = 0.05
    warmup: Rate = 0.1
    precision: Literal["float32", "bf16"] = "float32"


def open_pictures(source: str, train: int, test: int, device: torch.device) -> tuple[Labelled, Labelled]:
    """Random training and test images of a dataset by name; 0 for all of them."""
    found = find(source)
    if found.test is None:
        raise DataError(f"{source} has no test images; the experiments need demo, fashion-mnist or cifar10")
    return _drawn(found.train, train, device), _drawn(found.test, test, device)


def _drawn(data: Dataset, count: int, device: torch.device) -> Labelled:
    if data.size is None or "label" not in data.targets:
        raise DataError(f"{data.name} has no images of one size with classes; the experiments need those")
    if count > len(data):
        raise DataError(f"{data.name} has {len(data)} images; the experiment needs {count}")
    order = torch.randperm(len(data))[: count or len(data)]
    return Labelled(whole(data, order).to(device).float() / 255, data.targets["label"][order].to(device))


def whole(data: Dataset, order: Tensor) -> Tensor:
    """Images of a dataset whose images have one size, uint8, B C H W."""
    if data.array is not None:
        return data.array[order]
    return torch.stack([data.read(index) for index in order.tolist()])  # files of arrays are mapped, not in memory


def first(pictures: Labelled, count: int) -> Labelled:
    """The first of some images."""
    return Labelled(pictures.images[:count], pictures.classes[:count])


def shuffled(pictures: Labelled, batch: int) -> Draw:
    """Batches of shuffled images without end; a set smaller than a batch is one batch."""

    def stream() -> Iterator[Labelled]:
        count = len(pictures.classes)
        while True:
            order = torch.randperm(count).to(pictures.classes.device)
            for start in range(0, max(count - batch, 0) + 1, batch):
                rows = order[start : start + batch]
                yield Labelled(pictures.images[rows], pictures.classes[rows])

    batches = stream()
    return lambda: next(batches)


def fit(model: nn.Module, draw: Draw, how: Fit, *, after: Callable[[int], None] | None = None) -> list[float]:
    """Trains a model in place; the losses by step. `after` is called with the number of steps done."""
    return small_training.fit(
        model, draw, steps=how.steps, rate=how.rate, warm_up=round(how.warmup * how.steps),
        weight_decay=how.weight_decay, after=after, precision=how.precision,
    )  # fmt: skip


def looker(model: nn.Module, pictures: Labelled, every: int, looks: list[float]) -> Callable[[int], None]:
    """Adds the accuracy to `looks` after every so many steps."""

    def look(step: int) -> None:
        if step % every == 0:
            looks.append(accuracy(model, pictures))

    return look


def mean_loss(model: nn.Module, pictures: Labelled) -> float:
    """The mean cross-entropy."""
    return float(F.cross_entropy(outputs(model, pictures.images), pictures.classes))
