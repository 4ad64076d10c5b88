"""Errors of depth: those of distances as they are, and after each image was scaled to the true median."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.errors import DataError
from vitrail.tasks.task import Outputs

NAMES = ("abs_rel", "rmse", "delta1", "silog", "abs_rel_aligned", "delta1_aligned")
_LEAST = 1e-6
_DELTA = 1.25  # distances that differ by less than this factor are right


def silog(predicted: Tensor, truth: Tensor, *, focus: float = 0.5) -> Tensor:
    """The scale-invariant error of logarithms over known pixels, all of a batch (Eigen et al. 2014, arXiv:1406.2283).

    The variance of the difference counts in full, its mean by 1 - `focus`: B H W, B H W -> a number, the root.
    """
    known = truth > 0
    difference = torch.where(known, predicted.clamp(min=_LEAST).log() - truth.clamp(min=_LEAST).log(), 0.0)
    count = known.sum().clamp(min=1)
    mean, square = difference.sum() / count, difference.square().sum() / count
    return (square - focus * mean.square()).clamp(min=1e-12).sqrt()


def depth_errors(predicted: Tensor, truth: Tensor) -> Tensor:
    """The errors of each image by `NAMES`: B H W, B H W -> B 6, float64; NaN for an image without known pixels."""
    rows = []
    for said, true in zip(predicted.double().cpu(), truth.double().cpu(), strict=True):
        known = true > 0
        one, other = said[known].clamp(min=_LEAST), true[known]
        if not len(other):
            rows.append(torch.full((len(NAMES),), torch.nan, dtype=torch.float64))
            continue
        aligned = one * other.median() / one.median()
        logs = one.log() - other.log()
        rows.append(torch.stack([
            _abs_rel(one, other), (one - other).square().mean().sqrt(), _delta(one, other),
            (logs.square().mean() - logs.mean().square()).clamp(min=0).sqrt(),
            _abs_rel(aligned, other), _delta(aligned, other),
        ]))  # fmt: skip
    return torch.stack(rows) if rows else torch.zeros(0, len(NAMES), dtype=torch.float64)


def _abs_rel(predicted: Tensor, truth: Tensor) -> Tensor:
    return ((predicted - truth).abs() / truth).mean()


def _delta(predicted: Tensor, truth: Tensor) -> Tensor:
    return (torch.maximum(predicted / truth, truth / predicted) < _DELTA).double().mean()


class DepthMeter:
    """Keeps the errors of each image."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.rows: list[Tensor] = []

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in distances B H W, and the true ones."""
        found = depth_errors(outputs["depth"].detach(), targets[self.field])
        self.rows.append(found[~found[:, 0].isnan()])

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        self.rows += other.rows

    def compute(self) -> Mapping[str, Any]:
        """Numbers by `NAMES`, means over images, and images. Tensors: errors N 6."""
        errors = torch.cat(self.rows) if self.rows else torch.zeros(0, len(NAMES))
        if not len(errors):
            raise DataError("no images were evaluated; the data set is empty, or no image has a depth map")
        means = dict(zip(NAMES, errors.mean(dim=0).tolist(), strict=True))
        return means | {"images": len(errors), "errors": errors}
