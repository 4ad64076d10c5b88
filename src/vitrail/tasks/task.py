"""The contract of every task: a backbone, and what is asked of it."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, Self

from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.data.dataset import Batch
from vitrail.models.backbone import Backbone


class Meter(Protocol):
    """Collects batches and sums them up; it can be pickled and merged, so that processes share their results."""

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Takes in one batch, which may be empty: what the model said, and the truth."""
        ...

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter of the same task has seen."""
        ...

    def compute(self) -> Mapping[str, Any]:
        """Named numbers (and CPU tensors such as a confusion matrix) over everything seen."""
        ...


class Task(nn.Module):
    """Owns a backbone; the trainer knows a task through these methods alone."""

    backbone: Backbone
    classes: tuple[str, ...]  # none where the task reads no labels
    best_metric: str  # of `metrics().compute()`, higher is better: what the best checkpoint is chosen by

    @abstractmethod
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars by name; "loss" is minimised, the others are shown. Labels may be soft: B K float32."""

    @abstractmethod
    def outputs(self, images: Tensor) -> Tensor:
        """What metrics are made of, a row an image: logits B K, or errors."""

    @abstractmethod
    def metrics(self) -> Meter:
        """A fresh meter for one evaluation."""

    @abstractmethod
    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Named results for float images B C H W; with classes outputs, probabilities and chosen, B K each."""

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over what a validation chose, e.g. thresholds, so that predictions use it."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss: what wrappers of modules (DDP, FSDP, compile) call."""
        return self.loss(batch)


class PretrainConfig(Choice):
    """How a model learns from images alone, before it learns from labels."""

    @abstractmethod
    def build(self, backbone: Backbone) -> Task:
        """The task around a model without a head."""
