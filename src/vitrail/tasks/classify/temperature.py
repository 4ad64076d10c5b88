"""Temperature scaling: calibrated confidence, fitted to labelled images (arXiv:1706.04599)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError
from vitrail.tasks.classify.class_metrics import ClassMeter

LEAST = 50  # images: with fewer the temperature is too uncertain
_RANGE = (-3.0, 3.0)  # of the temperature's logarithm: 0.05 to 20


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What logits are divided by, the images it was fitted to, and the calibration error before and after."""

    temperature: float = 1.0
    images: int = 0
    error_before: float | None = None
    error_after: float | None = None

    def __str__(self) -> str:
        if self.error_before is None or self.error_after is None:
            return "not calibrated"
        return (
            f"calibrated on {self.images:,} images (temperature {self.temperature:.2f}); expected calibration error "
            f"{100 * self.error_before:.1f} % before, {100 * self.error_after:.1f} % after"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**data)


def fit_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    """The temperature under which logits M K give true labels M the greatest likelihood.

    Where all of M are right, no confidence would be too great; so one more image is assumed that is wrong, as Platt did
    (1999). The error after is measured on every other image, with the temperature of those between them.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) < LEAST:
        raise InputError(
            f"logits are {tuple(logits.shape)}, labels {tuple(labels.shape)}; they must be M K and M, with {LEAST} "
            "images or more"
        )
    logits = logits.double()
    held_out = _temperature(logits[::2], labels[::2])
    return Temperature(
        temperature=_temperature(logits, labels),
        images=len(labels),
        error_before=calibration_error(logits[1::2], labels[1::2]),
        error_after=calibration_error(logits[1::2] / held_out, labels[1::2]),
    )


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """How far confidence and accuracy lie apart: M K and M -> 0 to 1."""
    meter = ClassMeter(logits.shape[1])
    meter.add(logits, labels)
    return float(meter.compute()["ece"])


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """By golden section over its logarithm: the likelihood has one peak there."""
    low, high = _RANGE
    golden = (5**0.5 - 1) / 2
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if _loss(logits, labels, left) < _loss(logits, labels, right):
            high = right
        else:
            low = left
    return float(torch.tensor((low + high) / 2).exp())


def _loss(logits: Tensor, labels: Tensor, log_temperature: float) -> float:
    count, classes = logits.shape
    doubt = min(classes / max(classes - 1, 1) / (count + 2), 1.0)  # a true class is worth (M + 1) / (M + 2)
    return float(F.cross_entropy(logits / torch.tensor(log_temperature).exp(), labels, label_smoothing=doubt))
