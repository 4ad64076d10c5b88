"""The target of datasets that have exactly one: its classes, its values, and images per class."""

from torch import Tensor

from vitrail.data.dataset import Dataset


def classes(dataset: Dataset) -> tuple[str, ...]:
    (target,) = dataset.schema.values()
    return target.classes


def labels(dataset: Dataset) -> Tensor:
    (values,) = dataset.targets.values()
    return values


def counts(dataset: Dataset) -> list[int]:
    (target,) = dataset.schema.values()
    return target.counts(labels(dataset))
