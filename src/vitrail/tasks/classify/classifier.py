"""What classifiers of one class and of several labels share."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from vitrail.config import NotNegative, Positive, Range, Rate
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import ClassTarget, Schema
from vitrail.data.targets.class_balance import skew_of
from vitrail.errors import ConfigError, Unsupported
from vitrail.models.backbone import Backbone
from vitrail.models.registry import build, family_of
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Examples
from vitrail.tasks.classify import class_answer, classify_report
from vitrail.tasks.classify.class_answer import check_head
from vitrail.tasks.classify.class_loss import Loss, Weights, class_weights, log_priors
from vitrail.tasks.classify.goal import GoalConfig
from vitrail.tasks.task import Breakdown, HeldOut, Outputs, Task, TaskConfig


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(TaskConfig):
    """The options of every classifier.

    Classes of uneven frequency: `class_weights` weigh the loss, "inverse" by 1 / n, "effective" by the effective number
    of images (arXiv:1901.05555). `loss` "focal" (arXiv:1708.02002) turns to images that are not yet right,
    "logit_adjusted" (arXiv:2007.07314) adds `logit_adjustment` times the logarithm of each class's share in training,
    so that answers are those of even classes. `best_metric` chooses the best epoch; "auto" is the accuracy, or the
    balanced accuracy where classes are uneven, or the average precision of labels. `goal` is what decisions are made
    for: validation adopts thresholds that reach it.

    `members` is the number of models whose probabilities are averaged; an ensemble is made of runs (`--folds`).
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("class", "labels")
    label_smoothing: Rate = 0.0
    loss: Loss = "cross_entropy"
    focal_gamma: NotNegative = 2.0
    logit_adjustment: Positive = 1.0
    class_weights: Weights = "none"
    effective_beta: Rate = 0.999
    best_metric: Literal["auto", "accuracy", "balanced_accuracy", "macro_f1", "nll", "ap", "auc", "best_f1"] = "auto"
    goal: GoalConfig | None = None
    members: Annotated[int, Range(1, 100)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effective_beta == 1.0:
            raise ConfigError("task.effective_beta is 1; it must be less, such as 0.999")
        if self.loss == "logit_adjusted" and self.class_weights != "none":
            raise ConfigError(
                f"task.loss=logit_adjusted and task.class_weights={self.class_weights} both correct for the frequency "
                "of classes; leave out one of them"
            )

    @property
    def reweights(self) -> bool:
        """Whether the loss corrects for the frequency of classes."""
        return self.loss == "logit_adjusted" or self.class_weights != "none"

    def num_outputs(self, schema: Schema) -> int:
        """One for each class."""
        return len(next(iter(self.learns(schema).values())).classes)

    def ensemble(self, members: int) -> TaskConfig:
        """A classifier by the mean of probabilities."""
        return replace(self, members=members)

    def decided(self, schema: Schema, targets: Targets) -> tuple[TaskConfig, list[str]]:
        """Balanced accuracy chooses the best epoch where classes are uneven."""
        ((name, target),) = self.learns(schema).items()
        found = skew_of(target.classes, target.counts(targets[name])) if isinstance(target, ClassTarget) else None
        notes = list(self._remedies())
        if found is None or self.best_metric != "auto":
            return self, notes
        note = (
            f"classes are uneven ({found.frequent!r} {found.most:,} training images, {found.rare!r} {found.least:,}): "
            "balanced accuracy chooses the best epoch (task.best_metric)"
        )
        return replace(self, best_metric="balanced_accuracy"), [note, *notes]

    def _remedies(self) -> Iterator[str]:
        """What the loss does about uneven classes, in words."""
        if self.class_weights != "none":
            by = "number" if self.class_weights == "inverse" else "effective number"
            yield f"the loss weighs each class by 1 / the {by} of its images (task.class_weights={self.class_weights})"
        if self.loss == "focal":
            yield f"focal loss, gamma {self.focal_gamma:g}: images that are right already count less (task.loss)"
        if self.loss == "logit_adjusted":
            yield "the loss adds the logarithm of each class's share to the logits, so that rare ones count (task.loss)"


class Classifier(Task):
    """A backbone whose outputs are logits B K, one for each class."""

    about_metrics = classify_report.METRICS
    relative_scores = False
    columns = class_answer.COLUMNS
    kept_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    answered_by: ClassVar[Mapping[str, int]] = {"logits": 2}
    best_metrics: ClassVar[tuple[str, ...]]  # those that may choose the best epoch, the usual one first
    config: ClassifierConfig
    weights: Tensor  # of the loss
    shift: Tensor  # of logits in the loss

    def __init__(self, config: ClassifierConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        ((self.field, target),) = config.learns(schema).items()
        self.classes: tuple[str, ...] = target.classes
        self.output_names = self.classes
        self.best_metric = self._best_metric()
        if config.goal is not None:
            config.goal.check(self.classes, multi_label=not isinstance(target, ClassTarget))
        if backbone is not None:
            check_head(backbone, self.classes)
            backbone.labels = self.classes
            if config.members > 1:
                family, same = family_of(backbone), backbone.config
                self.others = nn.ModuleList(build(family, same) for _ in range(config.members - 1))

    def fit(self, targets: Targets) -> None:
        """Takes over how frequent classes are."""
        if self.config.members > 1:
            raise ConfigError(
                f"task.members={self.config.members} cannot be trained: an ensemble is made of runs, as --folds does"
            )
        self.set_balance(self.counted(targets[self.field]))

    @abstractmethod
    def counted(self, values: Tensor) -> Tensor:
        """How frequent classes are: counts K of images, or K 2 of those without and with a label."""

    def _best_metric(self) -> str:
        asked = self.config.best_metric
        if asked not in ("auto", *self.best_metrics):
            raise ConfigError(
                f"task.best_metric={asked} is not a metric of these data; allowed: {', '.join(self.best_metrics)}"
            )
        return self.best_metrics[0] if asked == "auto" else asked

    def set_balance(self, counts: Tensor) -> None:
        """Takes over how frequent classes are in training, as counts K, or K 2 of images without and with a label."""
        if counts.is_meta:  # an outline: computing without values would import torch's compiler, which takes a second
            self.register_buffer("weights", counts, persistent=False)
            self.register_buffer("shift", counts[:] if counts.ndim == 1 else counts[:, 0], persistent=False)
            return
        config, priors = self.config, log_priors(counts)
        by = config.logit_adjustment if config.loss == "logit_adjusted" else 0.0
        shift = by * (priors if counts.ndim == 1 else priors[:, 1] - priors[:, 0])
        weights = class_weights(counts, config.class_weights, config.effective_beta)
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    @property
    def gamma(self) -> float:
        """Of the focal loss; 0 for another."""
        return self.config.focal_gamma if self.config.loss == "focal" else 0.0

    @property
    def plain_loss(self) -> bool:
        """Whether the loss is the cross-entropy alone."""
        return self.config.loss == "cross_entropy" and self.config.class_weights == "none"

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of a batch, float32."""
        return self.losses(self.backbone(batch.images), batch.targets[self.field])

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of logits B K, and what is shown beside it."""

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Logits B K; of an ensemble those of the mean probabilities."""
        if self.config.members == 1:
            return {"logits": self.backbone(images)}
        return {"logits": self.joined([model(images).float() for model in (self.backbone, *self.others)])}

    @abstractmethod
    def joined(self, logits: Sequence[Tensor]) -> Tensor:
        """The logits of an ensemble: those of the mean of its members' probabilities, of their logits B K."""

    def join(self, folds: Sequence[HeldOut]) -> None:
        """Takes over the models; thresholds, or the decision of a goal, fit the outputs of all folds together."""
        for model, fold in zip(self.others, folds[1:], strict=True):
            model.load_state_dict(fold.task.backbone.state_dict())
        meter = self.metrics()
        for number, fold in enumerate(folds):
            meter.update({"logits": self.as_joined(fold.outputs["logits"], number)}, fold.targets)
        self.adopt(meter.compute())

    def as_joined(self, logits: Tensor, member: int) -> Tensor:
        """Logits B K of one member on the scale of those of the ensemble."""
        return logits

    def explained(self) -> Backbone:
        """The model; Unsupported for an ensemble."""
        if self.config.members > 1:
            raise Unsupported(
                f"this is an ensemble of {self.config.members} models, and each decides in its own way; explain one of "
                "the folds that it was made of"
            )
        return super().explained()

    def answer_schema(self) -> dict[str, Any]:
        """A list of candidates."""
        return class_answer.SCHEMA

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """Tables by class, confusion, calibration, worst mistakes."""
        return classify_report.sections(results, self.classes, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """How many images are right."""
        return classify_report.lead(results)

    def intervals(self, results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Of the metrics that are shares of the images."""
        return classify_report.intervals(results)

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """Recall of each class; AP of each label."""
        name = "recall" if "accuracy" in results else "ap_of"
        return {name: Breakdown.of(classify_report.BY_CLASS[name], self.classes, results[name])}

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The likeliest class."""
        return outputs["logits"].argmax(dim=1)
