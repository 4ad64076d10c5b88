"""What classifiers of one class and of several labels share."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vitrail.config import Rate
from vitrail.data.dataset import Batch
from vitrail.data.targets import Schema
from vitrail.models.backbone import Backbone
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Examples
from vitrail.tasks.classify import class_answer, classify_report
from vitrail.tasks.classify.class_answer import check_head
from vitrail.tasks.task import Outputs, Task, TaskConfig


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(TaskConfig):
    """The options of every classifier."""

    target_kinds: ClassVar[tuple[str, ...]] = ("class", "labels")
    label_smoothing: Rate = 0.0

    def num_outputs(self, schema: Schema) -> int:
        """One for each class."""
        return len(next(iter(self.learns(schema).values())).classes)


class Classifier(Task):
    """A backbone whose outputs are logits B K, one for each class."""

    about_metrics = classify_report.METRICS
    relative_scores = False
    columns = class_answer.COLUMNS
    answered_by: ClassVar[Mapping[str, int]] = {"logits": 2}
    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        ((self.field, target),) = config.learns(schema).items()
        self.classes: tuple[str, ...] = target.classes
        self.output_names = self.classes
        if backbone is not None:
            check_head(backbone, self.classes)
            backbone.labels = self.classes

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of a batch, float32."""
        return self.losses(self.backbone(batch.images), batch.targets[self.field])

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The loss of logits B K, and what is shown beside it."""

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Logits B K."""
        return {"logits": self.backbone(images)}

    def answer_schema(self) -> dict[str, Any]:
        """A list of candidates."""
        return class_answer.SCHEMA

    def evidence(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """Tables by class, confusion, calibration, worst mistakes."""
        return classify_report.sections(results, self.classes, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """How many images are right."""
        return classify_report.lead(results)

    def intervals(self, results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Of the metrics that are shares of the images."""
        return classify_report.intervals(results)

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The likeliest class."""
        return outputs["logits"].argmax(dim=1)
