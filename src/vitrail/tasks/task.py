"""The contract of every task: what a backbone learns, what its outputs mean, and how that is measured and shown.

To add a task: one file here with a `TaskConfig` and a `Task`, and one line in `vitrail/tasks/__init__.py`. Training,
evaluation, prediction, explanations, export and the service know tasks through these methods alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import Choice
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch, Targets
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError, Unsupported, nearest
from vitrail.models.backbone import Backbone
from vitrail.report import Section
from vitrail.report.metric import Interval, Metric
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples

_ROWS = 2  # axes of an output with a row of numbers for each image
Outputs = Mapping[str, Tensor]
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


class Meter(Protocol):
    """Collects batches and sums them up; it can be pickled and merged, so that processes share their results."""

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in one batch, which may be empty: what the model said, and the truth."""
        ...

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter of the same task has seen."""
        ...

    def compute(self) -> Mapping[str, Any]:
        """Named numbers (and CPU tensors such as a confusion matrix) over everything seen."""
        ...


class Agreement(NamedTuple):
    """How close the outputs of an artefact are to those of the model that it was made from."""

    error: float  # the largest difference over the largest output
    cosine: float  # the least of all images
    agreement: float  # the share of images with the same answer; of boxes or pixels where an answer has many


class HeldOut(NamedTuple):
    """The model of a fold, and what it said of the images that it held out: `Task.kept_outputs`, truth and groups."""

    task: "Task"
    outputs: Outputs
    targets: Targets
    groups: Sequence[str]  # images of one group are not independent; a group for each where they are


class Breakdown(NamedTuple):
    """A metric of each class, label or number; NaN where it is not defined."""

    metric: Metric
    values: Mapping[str, float]

    @classmethod
    def of(cls, metric: Metric, names: Sequence[str], values: Tensor) -> Self:
        """Values K by their names."""
        return cls(metric, dict(zip(names, values.tolist(), strict=True)))


class Likelihood(NamedTuple):
    """What a loss L is as a negative log likelihood with noise of a learned size s: `loss` exp(-s) L + `log` s.

    See Kendall et al. 2018 (arXiv:1705.07115); s is the logarithm of a variance, or of the width of a Laplace
    distribution.
    """

    loss: float
    log: float


CLASSES = Likelihood(1.0, 0.5)  # a cross-entropy, whose logits are divided by the variance
SQUARES = Likelihood(0.5, 0.5)  # a mean of squares: Gaussian
DISTANCES = Likelihood(1.0, 1.0)  # a mean of distances: Laplace


class TaskConfig(Choice):
    """The options of a task, as recipes, run.json and artefacts store them."""

    target_kinds: ClassVar[tuple[str, ...]] = ()  # kinds of target that it learns from; none: it reads no labels
    inferred: ClassVar[bool] = True  # whether data of such a kind alone are enough to choose it
    student: ClassVar[str | None] = None  # the kind of task that is the same with a teacher
    preprocess: ClassVar[Mapping[str, Any]] = {}  # how images are prepared where neither recipe nor weights say it

    @abstractmethod
    def build(self, backbone: Backbone | None, schema: Schema) -> "Task":
        """The task around a model; without one it reads the outputs of an artefact."""

    @abstractmethod
    def num_outputs(self, schema: Schema) -> int:
        """The width of the model's head; 0 for none."""

    @property
    def reweights(self) -> bool:
        """Whether the loss corrects for the frequency of classes, so that sampling must not do it again."""
        return False

    def ensemble(self, members: int) -> "TaskConfig | None":
        """The task of so many models that answer together; None where answers cannot be averaged."""
        return None

    def decided(self, schema: Schema, targets: Targets) -> tuple["TaskConfig", list[str]]:
        """The same with what was left open decided by the training targets, and notes on it."""
        return self, []

    def stored(self) -> "TaskConfig":
        """The task that the trained model is for: itself, unless training needs more than its result."""
        return self

    def wanted(self, columns: tuple[str, ...] = ()) -> Wanted:
        """What is read from data for it; `columns` are those of a table that hold the target."""
        return Wanted(columns, self.target_kinds, targets=bool(self.target_kinds))

    def learns(self, schema: Schema) -> dict[str, Any]:
        """The part of a schema that the task learns from; ConfigError where there is none."""
        found = {name: target for name, target in schema.items() if target.kind in self.target_kinds}
        if self.target_kinds and not found:
            have = ", ".join(target.describe() for target in schema.values())
            raise ConfigError(
                f"task {self.kind!r} needs a target of kind {' or '.join(self.target_kinds)}; "
                f"{f'the data have {have}' if have else 'none was recognised in the data'}. "
                "Choose another task, or name the column of a table with the target (--label)"
            )
        return found

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """What training uses of a schema and of augmentation, and notes on what was changed."""
        notes: list[str] = []
        flips = augment.flip or augment.flip_vertical
        if flips and not all(target.keeps("flip") for target in schema.values()):
            augment = replace(augment, flip=False, flip_vertical=False)
            notes.append(f"flips are off: they may falsify the target{self._declare('flip')}")
        moves = augment.crop != "none" or augment.randaugment
        if moves and not all(target.keeps("crop") for target in schema.values()):
            augment = replace(augment, crop="none", randaugment=0)
            notes.append(f"crops, shifts and RandAugment are off: they may falsify the target{self._declare('crop')}")
        return schema, augment, mix, notes

    def _declare(self, change: str) -> str:
        """How to say that a change is safe, where the task has an option for it."""
        return f" (if not: --set task.safe={change})" if hasattr(self, "safe") else ""


class Task(nn.Module, ABC):
    """A backbone, and what is asked of it; without a backbone, the meaning of outputs that an artefact computes."""

    config: TaskConfig
    schema: Schema
    best_metric: str  # of `metrics().compute()`: it chooses the best checkpoint; `about_metrics` has its direction
    tie_metric: str | None = None  # decides between equals
    printed: Collection[str] | None = None  # losses and metrics that the line of an epoch shows; None for all
    about_metrics: ClassVar[Mapping[str, Metric]] = {}  # whether higher is better, too; it is where nothing is said
    capturable: bool = True  # whether a training step runs on the device alone, so that it can be recorded
    relative_scores: bool = True  # whether `scores` compare with the outputs for the whole image
    likelihood: Likelihood = CLASSES  # of its loss, where it is one of many
    layers: tuple[int, ...] = ()  # blocks whose features it reads beside the last ones
    gives_maps: bool = False  # whether answers have a place in the image, so that views of parts have no mean
    int8_loss: ClassVar[float | None] = None  # what int8 may take from the best metric; None: answers must be the same
    kept_outputs: ClassVar[tuple[str, ...]] = ()  # those small enough to keep for all images that folds hold out
    columns: tuple[str, ...] = ()  # of a table of predictions
    output_names: tuple[str, ...] = ()  # of the head's outputs
    answered_by: ClassVar[Mapping[str, int]] = {}  # the outputs that `decode` reads, and their number of axes

    def __init__(self, config: TaskConfig, schema: Schema, backbone: Backbone | None) -> None:
        super().__init__()
        self.config, self.schema = config, dict(schema)
        if backbone is not None:
            self.backbone = backbone

    # Learning

    @abstractmethod
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars by name; "loss" is minimised, the others are shown."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss: what wrappers of modules (DDP, FSDP, compile) call."""
        return self.loss(batch)

    @abstractmethod
    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """What metrics, answers and artefacts are made of, by name: tensors B ... of float images B C H W."""

    def learn_from(
        self, teacher: nn.Module, *, preprocess: Preprocess | None = None, student: Preprocess | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Takes a teacher to learn from as well; `state` is that of its task.

        `preprocess` is how the teacher's images were prepared and `student` how these are, where both are known.
        """
        raise ConfigError(f"task {self.config.kind!r} cannot learn from a teacher; leave out --teacher")

    def fit(self, targets: Targets) -> None:
        """Takes over what it needs of all training targets before the first step, e.g. their mean."""

    # Measuring

    @abstractmethod
    def metrics(self) -> Meter:
        """A fresh meter for one evaluation."""

    def is_better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Whether a validation beats another; between equals, as few images often give, `tie_metric` decides."""
        for name in (self.best_metric, self.tie_metric):
            metric = self.about_metrics.get(name or "")
            sign = -1 if metric is not None and not metric.higher else 1
            first, second = (sign * scores.get(name or "", -sign * math.inf) for scores in (new, old))
            if first != second:
                return first > second
        return False

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over what a validation chose, e.g. thresholds."""

    def calibrate(self, outputs: Outputs, targets: Targets) -> None:
        """Calibrates answers on validation images: fits a temperature, or prediction intervals."""

    def clear_calibration(self) -> None:
        """Undoes `calibrate`, so that metrics are those of the model as it was trained."""

    def state(self) -> dict[str, Any]:
        """What validation chose and calibration found, as plain data."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""

    def calibration(self) -> str:
        """What was calibrated, in one sentence; empty where there is nothing to calibrate."""
        return ""

    def join(self, folds: Sequence[HeldOut]) -> None:
        """Becomes the ensemble of some models; what it decides by fits the images that they held out."""
        raise Unsupported(f"models of task {self.config.kind!r} cannot be joined")

    # Answers

    def of_view(self, images: Tensor, *, mirrored: bool) -> dict[str, Tensor]:
        """What `average` reads of a view B C H W; maps of mirrored images are flipped back. By default, the outputs."""
        return self.outputs(images)

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """What several views of the same images say together, as outputs; Unsupported where answers have no mean."""
        raise Unsupported(f"answers of task {self.config.kind!r} cannot be averaged over views")

    @abstractmethod
    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """An answer for each image; Unsupported where the task gives none."""

    @abstractmethod
    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """How wrong each image is, 0 for right: B. It chooses the examples of a report."""

    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of `Answer.to_json`."""
        return {"type": "object"}

    # Reports

    @abstractmethod
    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """Sections of a report on an evaluation, with pictures where there are examples."""

    def lead(self, results: Mapping[str, Any]) -> str:
        """The result in a sentence, without a full stop."""
        return f"Evaluated on {int(results['images']):,} images"

    def intervals(self, results: Mapping[str, Any]) -> dict[str, Interval]:
        """The 95 % intervals of metrics, where they are known."""
        return {}

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """The metrics of results that are known of each class, label or number; none where there is nothing to name."""
        return {}

    def pooled_intervals(self, folds: Sequence[HeldOut]) -> dict[str, Interval]:
        """The 95 % intervals of metrics of all images that folds held out, where they are known."""
        return {}

    # Artefacts

    def graph(self, outputs: Outputs) -> dict[str, Tensor]:
        """What an exported graph gives: outputs, and what is made of them with tensors alone."""
        return dict(outputs)

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """How close outputs are to others, and on which share of images the answer is the same."""
        name = next(iter(expected))
        error, cosine = distance(expected[name], found[name])
        return Agreement(error, cosine, float(self.same(expected, found).mean()))

    def width_of(self, output: str) -> int | None:
        """How many numbers an output has for each image, where it has one for each of `output_names`; else None."""
        first, axes = next(iter(self.answered_by.items()), ("", 0))
        return len(self.output_names) or None if output == first and axes == _ROWS else None

    @abstractmethod
    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """Whether the answers to each image are the same: B bool."""

    # Explanations

    def explained(self) -> Backbone:
        """The model whose call gives the outputs that are explained, B K: by default the backbone with its head."""
        return self.backbone

    def explained_for(self, outputs: Outputs) -> Backbone:
        """The same for changes of one image: what was found in it, 1 ..., is followed, such as a box or a region."""
        return self.explained()

    def explain_target(self, outputs: Outputs, name: str | None) -> Tensor:
        """Which output of the head is explained for each image: the one of that name, or by default the answer; B."""
        if not self.output_names:
            raise Unsupported(f"a model of task {self.config.kind!r} has no outputs to explain")
        count, device = len(next(iter(outputs.values()))), next(iter(outputs.values())).device
        if name is None:
            return self.likeliest(outputs)
        if name not in self.output_names:
            raise ConfigError(f"the model has no output {name!r}; {nearest(name, self.output_names)}")
        return torch.full((count,), self.output_names.index(name), device=device)

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The output that an explanation shows by default: B."""
        values = next(iter(outputs.values()))
        return torch.zeros(len(values), dtype=torch.int64, device=values.device)

    def explained_part(self, outputs: Outputs, indices: Tensor, size: tuple[int, int]) -> Tensor | None:
        """The pixels that explained outputs B are about: B *size, bool; None where it is the whole image."""
        return None

    def cross_attention(self, images: Tensor, indices: Tensor) -> Tensor | None:
        """Where a decoder looks for outputs B: maps B H W of float images B C H W; None for models without one."""
        return None

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Outputs of the head as what curves of insertion and deletion follow, 0 to 1: B K -> B K.

        `reference` are the outputs for the whole images, where `relative_scores` asks for them. By default a score is
        how close an output is to that: 1 for the same.
        """
        return torch.exp(-(logits - (0.0 if reference is None else reference)).abs())


def distance(expected: "np.ndarray[Any, Any]", found: "np.ndarray[Any, Any]") -> tuple[float, float]:
    """The largest difference over the largest value, and the least cosine of all images: B ... -> two numbers."""
    first, second = (np.asarray(one, dtype=np.float64).reshape(len(one), -1) for one in (expected, found))
    error = float(np.abs(first - second).max() / max(np.abs(first).max(), 1e-12))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return error, float(((first * second).sum(axis=1) / np.maximum(norms, 1e-12)).min())


def finite_rows(outputs: Outputs) -> list[bool]:
    """For each image, whether none of its outputs is NaN or infinite."""
    rows = [torch.isfinite(values).flatten(1).all(dim=1) for values in outputs.values()]  # B each
    found: list[bool] = torch.stack(rows).all(dim=0).tolist()
    return found


def require_finite(values: Tensor) -> Tensor:
    """The same values; ValueError where one is NaN or infinite, since no answer can be made of it."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the model answered with numbers that are not finite")
    return values


def infer(schema: Schema) -> type[TaskConfig]:
    """The task that a schema suggests; ConfigError where none does."""
    kinds = [kind for kind in TaskConfig.kinds.values() if issubclass(kind, TaskConfig) and kind.inferred]
    for kind in kinds:
        if any(target.kind in kind.target_kinds for target in schema.values()):
            return kind
    unlabelled = [name for name, kind in TaskConfig.kinds.items() if not getattr(kind, "target_kinds", ())]
    raise ConfigError(
        "the data have no labels: put the images of each class into a folder of its own, or name a table with a column "
        "of labels (--label NAME, unless it is called label or value); to learn from images alone, choose "
        f"--task {' or '.join(unlabelled)}"
    )
