"""Detection: a backbone and a detector that finds boxes as a set."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Count, NotNegative, Rate
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import Schema
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.errors import ConfigError, Notice
from vitrail.layers.boxes import inverse_sigmoid, iou, precise, to_corners
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads import DeformableDetrConfig, Detections, Detector, DetectorConfig
from vitrail.models.heads.detector import Boxes
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples
from vitrail.tasks.dense import DenseConfig
from vitrail.tasks.detect import detect_report
from vitrail.tasks.detect.box_agreement import compared
from vitrail.tasks.detect.coco_metrics import BoxMeter, images_of
from vitrail.tasks.detect.counting import mistakes
from vitrail.tasks.detect.cross_attention import cross_attention
from vitrail.tasks.detect.denoising import noised
from vitrail.tasks.detect.detect_answer import COLUMNS, SCHEMA, BoxesAnswer, FoundBox
from vitrail.tasks.detect.matching import Costs, Truth
from vitrail.tasks.detect.set_loss import ClassLoss, SetLoss, matched, weighted
from vitrail.tasks.task import DISTANCES, Agreement, Arrays, Breakdown, Outputs, Task, require_finite

_FIRST_THRESHOLD = 0.5  # until a validation chose one


@dataclass(frozen=True, kw_only=True)
class DetectConfig(DenseConfig, kind="detect"):
    """Boxes with classes, found by `head`; the weights of the loss are also those of the matching.

    `class_loss` is that of a head whose classes do not exclude each other. `label_noise` and `box_noise` are those of
    denoising, where the head has it. `most` is how many boxes an answer names at most.
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("boxes",)
    head: DetectorConfig = DeformableDetrConfig()
    class_loss: ClassLoss = "varifocal"
    class_weight: NotNegative = 2.0
    box_weight: NotNegative = 5.0
    giou_weight: NotNegative = 2.0
    label_noise: Rate = 0.5
    box_noise: NotNegative = 1.0
    most: Count = 100

    def __post_init__(self) -> None:
        """Raises ConfigError for a loss that does not fit the head."""
        super().__post_init__()
        if self.class_loss == "softmax" and not self.head.softmax:
            raise ConfigError(f"class_loss=softmax does not fit the head {self.head.kind!r}; use focal or varifocal")

    def build(self, backbone: Backbone | None, schema: Schema) -> "Detect":
        """The task of the schema's boxes."""
        return Detect(self, schema, backbone)

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """With a note where a picture has more objects than there are queries."""
        schema, augment, mix, notes = super().adapt(schema, augment, mix)
        for target in schema.values():
            if isinstance(target, BoxesTarget) and target.most > self.head.queries:
                notes.append(
                    f"an image has {target.most} boxes, but the detector finds at most {self.head.queries}: the others "
                    "cannot be learned (task.head.queries)"
                )
        return schema, augment, mix, notes


class Detect(Task):
    """A backbone and a detector; boxes are in pixels of the model's input until an answer is placed."""

    best_metric = "ap"
    printed = ("loss", "class_loss", "box_loss", "giou_loss", "ap", "ap50", "ap75", "best_f1")
    tie_metric = None
    about_metrics = detect_report.METRICS
    columns = COLUMNS
    answered_by: ClassVar[Mapping[str, int]] = {"boxes": 3, "scores": 2, "labels": 2}
    capturable = False  # matching runs on the CPU
    relative_scores = False
    int8_loss = 0.005
    likelihood = DISTANCES
    config: DetectConfig
    head: Detector

    def __init__(self, config: DetectConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        (self.field,) = config.learns(schema)
        target = schema[self.field]
        assert isinstance(target, BoxesTarget)  # noqa: S101  (`learns` says so)
        self.classes = target.classes
        self.threshold = _FIRST_THRESHOLD
        self.count = min(config.most, config.head.queries * (1 if config.head.softmax else len(self.classes)))
        self.output_names = tuple(f"box {number}" for number in range(self.count))
        costs = Costs(config.class_weight, config.box_weight, config.giou_weight)
        self.criterion = SetLoss("softmax" if config.head.softmax else config.class_loss, costs)
        if backbone is not None:
            self.head = config.head.build(backbone, len(self.classes))

    # Learning

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The set loss of every decoder layer, of proposals, of extra queries and of noised boxes."""
        size = (batch.images.shape[2], batch.images.shape[3])
        truth = Truth.of(batch.targets[self.field], size)
        config, noisy = self.config, None
        count = getattr(config.head, "denoising", 0)
        if count:
            noise = {"label_noise": config.label_noise, "box_noise": config.box_noise}
            noisy = noised(truth, count, len(self.classes), **noise)
        found = self.head(self.backbone.features(batch.images), noisy)
        known = None if found.noised is None or noisy is None else (self.criterion, found.noised, noisy)
        main, *others = matched(self._sets(found, truth), known)
        total = sum((weighted(one, self.criterion.weights) for one in others), weighted(main, self.criterion.weights))
        layers = len(found.found.logits)
        return {"loss": total} | {name: value.detach() / layers for name, value in main.items()}

    def _sets(self, found: Detections, truth: Truth) -> list[tuple[SetLoss, Boxes, Truth]]:
        """Queries that are matched with true boxes, those of the answer first."""
        sets = [(self.criterion, found.found, truth)]
        if found.proposals is not None:
            binary = found.proposals.logits.shape[-1] == 1
            focal = self.criterion._replace(kind="focal")
            sets.append((focal, found.proposals, truth.without_class() if binary else truth))
        if found.extra is not None:
            sets.append((self.criterion, found.extra, truth.repeated(self.config.head.repeat)))
        return sets

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The best boxes: corners B N 4 in pixels of the images, scores and class numbers B N."""
        boxes, scores, labels = self._best(self.backbone.features(images))
        height, width = images.shape[2], images.shape[3]
        sides = torch.tensor([width, height, width, height], device=images.device)
        return {"boxes": boxes * sides, "scores": scores, "labels": labels.to(scores.dtype)}

    def _best(self, features: Features) -> tuple[Tensor, Tensor, Tensor]:
        found = self.head(features).found
        return self.head.decode(found.logits[-1], found.boxes[-1], self.count)

    # Measuring

    def metrics(self) -> BoxMeter:
        """A fresh meter for one evaluation."""
        return BoxMeter(self.field, self.classes, self.threshold)

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Takes over the threshold with the best F1."""
        self.threshold = float(results["threshold"])

    def state(self) -> dict[str, Any]:
        """The threshold of scores."""
        return {"threshold": self.threshold}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.threshold = float(state.get("threshold", _FIRST_THRESHOLD))

    # Answers

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The boxes above the threshold, in pixels of the model's input; `top` has no meaning here."""
        boxes, scores, labels = (require_finite(outputs[name]).tolist() for name in ("boxes", "scores", "labels"))
        return [
            BoxesAnswer(
                tuple(
                    FoundBox(self.classes[int(number)], int(number), score, tuple(corners))
                    for corners, score, number in zip(*one, strict=True)
                    if score >= self.threshold
                )
            )
            for one in zip(boxes, scores, labels, strict=True)
        ]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The share of boxes that are superfluous or missed; 0 for an image that was not annotated."""
        values = targets[self.field]
        known = BoxesTarget.known(values)
        found = torch.zeros(len(values))
        found[known.cpu()] = torch.tensor([mistakes(image, self.threshold) for image in images_of(outputs, values)])
        return found

    def answer_schema(self) -> dict[str, Any]:
        """A list of boxes."""
        return SCHEMA

    # Reports

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """AP by class, precision by recall, confusion, worst images."""
        return detect_report.sections(results, self.classes, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """AP and AP50."""
        return detect_report.lead(results)

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """AP of each class."""
        return {"ap_of": Breakdown.of(detect_report.METRICS["ap"], self.classes, results["ap_of"])}

    # Artefacts

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """Of boxes above the threshold, each beside that of its class which overlaps it most: the share of the same."""
        error, cosine, _, boxes = compared(expected, found, self.threshold)
        return Agreement(error, cosine, boxes)

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """The same boxes above the threshold, at IoU 0.5 and with about the same score."""
        return compared(expected, found, self.threshold).same

    # Explanations

    def explained(self) -> Backbone:
        """A model whose outputs are the logits of the scores of the best boxes, that with the best score first."""
        return self.backbone.with_outputs(lambda features: inverse_sigmoid(self._best(features)[1]), self.count)

    def explained_for(self, outputs: Outputs) -> Backbone:
        """A model whose outputs follow the boxes of one image, whatever their order (D-RISE, arXiv:2006.03204).

        The score of a box is the best score for its class of any box that is found, times their IoU.
        """
        height, width = self.backbone.config.image_size
        known = outputs["boxes"][0] / outputs["boxes"].new_tensor([width, height, width, height])  # N 4
        labels = outputs["labels"][0].round().long()  # N

        def followed(features: Features) -> Tensor:
            found = self.head(features).found
            scores = self.head.scores(precise(found.logits[-1]))[..., labels]  # B Q N
            overlap = iou(to_corners(precise(found.boxes[-1]))[:, :, None], known).detach()  # B Q N
            return inverse_sigmoid((scores * overlap).amax(dim=1))

        return self.backbone.with_outputs(followed, self.count)

    def explain_target(self, outputs: Outputs, name: str | None) -> Tensor:
        """The box of that name, or by default the best one; a notice where it is no part of the answer."""
        if name is not None and name not in self.output_names:
            what = "a class, not a box" if name in self.classes else "not a box"
            raise ConfigError(
                f"{name!r} is {what}; name one of 'box 0' to 'box {self.count - 1}'; box 0 has the best score"
            )
        chosen = super().explain_target(outputs, name)
        scores = outputs["scores"].gather(1, chosen[:, None])
        if name is not None and (score := scores.min().item()) < self.threshold:
            about = f"{name} has a score of {score:.2f}, below the threshold {self.threshold:.2f}"
            warnings.warn(f"{about}: the model does not count it as found", Notice, stacklevel=2)
        return chosen

    def explained_part(self, outputs: Outputs, indices: Tensor, size: tuple[int, int]) -> Tensor:
        """The pixels in the explained boxes."""
        corners = outputs["boxes"].gather(1, indices[:, None, None].expand(-1, -1, 4)).round()[:, 0]  # B 4
        x1, y1, x2, y2 = (one[:, None, None] for one in corners.unbind(1))
        rows, columns = (torch.arange(side, device=corners.device) for side in size)
        return (rows[:, None] >= y1) & (rows[:, None] < y2) & (columns >= x1) & (columns < x2)  # B H W

    def cross_attention(self, images: Tensor, indices: Tensor) -> Tensor:
        """Where the decoder's queries of the explained boxes look."""
        size = (images.shape[2], images.shape[3])
        return cross_attention(self.head, self.backbone.features(images), indices, self.count, size)

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """The scores of the best boxes: B N -> B N."""
        return logits.sigmoid()
