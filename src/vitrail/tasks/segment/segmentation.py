"""Segmentation: a backbone and a head that gives each pixel a class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import NotNegative, Range, Rate
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import Schema
from vitrail.data.targets.mask_target import IGNORE, MaskTarget
from vitrail.layers.bilinear import resized
from vitrail.layers.boxes import inverse_sigmoid, precise
from vitrail.layers.conv import ConvNorm
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads.eomt import Eomt, EomtConfig
from vitrail.models.heads.segformer import SegFormerConfig
from vitrail.models.heads.segmenter import Segmenter, SegmenterConfig
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples
from vitrail.tasks.dense import DenseConfig
from vitrail.tasks.segment import segment_report
from vitrail.tasks.segment.mask_answer import COLUMNS, SCHEMA, MaskAnswer
from vitrail.tasks.segment.mask_losses import cross_entropy, dice, lovasz
from vitrail.tasks.segment.mask_metrics import MaskMeter, pixel_confusion
from vitrail.tasks.segment.mask_set_loss import mask_set_loss
from vitrail.tasks.segment.windows import in_windows
from vitrail.tasks.task import Agreement, Arrays, Breakdown, Outputs, Task, distance, require_finite

T = TypeVar("T")
_SAMPLED = 200  # masks that class weights are counted on
_SAME = 0.99  # the share of pixels that must have the same class in the same answer


@dataclass(frozen=True, kw_only=True)
class SegmentConfig(DenseConfig, kind="segment"):
    """A class for each pixel, by `head`.

    `balance` weights the cross-entropy by the frequency of classes to the power of -`balance`: 0 is no weighting, 1
    gives all classes the same weight. `ohem` is the share of the pixels that it counts, those with the largest loss
    (online hard example mining, arXiv:1604.03540). `dice` and `lovasz` are the weights of these losses beside it,
    `auxiliary` is that of the cross-entropy of a small convolutional head on the last level but one, for training
    alone (arXiv:1612.01105). A head with queries learns from its own loss of sets, which none of these changes.
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("mask",)
    head: SegmenterConfig = SegFormerConfig()
    balance: Rate = 0.0
    ohem: Annotated[float, Range(0.0, 1.0, open=True)] = 1.0
    dice: NotNegative = 0.0
    lovasz: NotNegative = 0.0
    auxiliary: NotNegative = 0.0

    def build(self, backbone: Backbone | None, schema: Schema) -> "Segment":
        """The task of the schema's masks."""
        return Segment(self, schema, backbone)


def _second(levels: Sequence[T]) -> T:
    """The last level but one, or the only one."""
    return levels[max(len(levels) - 2, 0)]


def _likeliest(shares: Tensor) -> dict[str, Tensor]:
    """Probabilities B K H W -> the class of each pixel and its probability, B H W each."""
    confidence, classes = shares.max(dim=1)
    return {"classes": classes.to(confidence.dtype), "confidence": confidence}


class Segment(Task):
    """A backbone and a head; class maps have the size of the model's input until an answer is placed."""

    best_metric = "miou"
    about_metrics = segment_report.METRICS
    columns = COLUMNS
    answered_by: ClassVar[Mapping[str, int]] = {"classes": 3}
    relative_scores = False
    gives_maps = True
    int8_loss = 0.005
    config: SegmentConfig
    head: Segmenter
    weights: Tensor

    def __init__(self, config: SegmentConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        (self.field,) = config.learns(schema)
        target = schema[self.field]
        assert isinstance(target, MaskTarget)  # noqa: S101  (`learns` says so)
        self.target = target
        self.classes = self.output_names = target.classes
        self.capturable = not isinstance(config.head, EomtConfig)  # matching runs on the CPU
        self.register_buffer("weights", torch.ones(len(self.classes)), persistent=False)
        if backbone is not None:
            self.head = config.head.build(backbone, len(self.classes))
            self.auxiliary = self._auxiliary_head(backbone)

    # Learning

    def fit(self, targets: Targets) -> None:
        """Counts the classes of some training masks, where these are weighted."""
        if not self.config.balance:
            return
        values, counts = targets[self.field], torch.zeros(IGNORE + 1)
        for index in range(0, len(values), max(len(values) // _SAMPLED, 1)):
            mask = self.target.load(values[index]) if values.ndim == 2 else values[index]
            counts += torch.bincount(mask.flatten().long(), minlength=IGNORE + 1)
        shares = counts[: len(self.classes)] / counts[: len(self.classes)].sum().clamp(min=1)
        weights = shares.clamp(min=1e-4) ** -self.config.balance
        self.weights.copy_(weights / (weights * shares).sum().clamp(min=1e-6))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of all pixels, and Dice's or Lovasz's loss of all classes."""
        mask = batch.targets[self.field].long()
        if isinstance(self.head, Eomt):
            return {"loss": mask_set_loss(self.head.layers(self.backbone, batch.images), mask)}
        features = self.head.read(self.backbone, batch.images)
        logits = resized(precise(self.head(features)), mask.shape[1:])
        parts = {"cross_entropy": self._cross_entropy(logits, mask)}
        total = parts["cross_entropy"]
        if self.auxiliary is not None:
            coarse = resized(precise(self.auxiliary(_second(features.pyramid))), mask.shape[1:])
            parts["auxiliary_loss"] = self._cross_entropy(coarse, mask)
            total = total + self.config.auxiliary * parts["auxiliary_loss"]
        for name, weight, of in (("dice", self.config.dice, dice), ("lovasz", self.config.lovasz, lovasz)):
            if weight:
                parts[f"{name}_loss"] = of(logits, mask)
                total = total + weight * parts[f"{name}_loss"]
        return {"loss": total} | {name: value.detach() for name, value in parts.items()}

    def _cross_entropy(self, logits: Tensor, mask: Tensor) -> Tensor:
        weights = self.weights if self.config.balance else None
        return cross_entropy(logits, mask, weights, hardest=self.config.ohem)

    def _auxiliary_head(self, backbone: Backbone) -> nn.Module | None:
        """A convolution and a classifier for the last level but one; None without that loss."""
        if not self.config.auxiliary or isinstance(self.config.head, EomtConfig):
            return None
        width = _second(backbone.config.level_dims)
        dim = max(width // 4, 16)
        convolution = ConvNorm(width, dim, 3, activation=nn.ReLU())
        return nn.Sequential(convolution, nn.Dropout2d(0.1), nn.Conv2d(dim, len(self.classes), 1))

    def logits(self, images: Tensor) -> Tensor:
        """Class logits at the size of the images: B C H W -> B K H W; in windows where a model takes one size."""
        size, config = (images.shape[2], images.shape[3]), self.backbone.config
        if size != config.image_size and not config.dynamic_size:
            return in_windows(self.logits, images, config.image_size)
        return resized(precise(self.head(self.head.read(self.backbone, images))), size)

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The class of each pixel and its probability: B H W each."""
        return _likeliest(self.logits(images).softmax(dim=1))

    def of_view(self, images: Tensor, *, mirrored: bool) -> dict[str, Tensor]:
        """The probabilities of all classes: B K H W."""
        shares = self.logits(images).softmax(dim=1)
        return {"shares": shares.flip(3) if mirrored else shares}

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """Of mean probabilities."""
        total = outputs[0]["shares"].clone()  # one sum, as all views together may not fit in memory
        for one in outputs[1:]:
            total += one["shares"]
        return _likeliest(total / len(outputs))

    # Measuring

    def metrics(self) -> MaskMeter:
        """A fresh meter for one evaluation."""
        return MaskMeter(self.field, self.classes)

    # Answers

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """A class for each pixel; `top` has no meaning here."""
        return [MaskAnswer.of(self.classes, classes) for classes in require_finite(outputs["classes"])]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The share of wrong pixels; 0 for an image without a mask."""
        found = []
        for truth, classes in zip(targets[self.field].cpu(), outputs["classes"].cpu(), strict=True):
            counts = pixel_confusion(truth, classes, len(self.classes))
            found.append(1 - float(counts.diagonal().sum()) / max(int(counts.sum()), 1) if counts.any() else 0.0)
        return torch.tensor(found)

    def answer_schema(self) -> dict[str, Any]:
        """Classes with their shares, and a mask."""
        return SCHEMA

    # Reports

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """IoU by class, confusion, worst images."""
        return segment_report.sections(results, self.classes, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """The mean IoU."""
        return segment_report.lead(results)

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """IoU of each class."""
        return {"iou_of": Breakdown.of(segment_report.IOU, self.classes, results["iou_of"])}

    # Artefacts

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """Of probabilities, and the share of pixels with the same class."""
        error, cosine = distance(expected["confidence"], found["confidence"])
        return Agreement(error, cosine, float((expected["classes"].round() == found["classes"].round()).mean()))

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """At least 99 % of the pixels have the same class."""
        equal = expected["classes"].round() == found["classes"].round()
        return equal.reshape(len(equal), -1).mean(axis=1) >= _SAME

    # Explanations

    def explained(self) -> Backbone:
        """A model whose outputs are the logits of the mean probability of each class over its own pixels."""
        read = partial(self.head.read, self.backbone)
        return self.backbone.with_outputs(self._of_classes, len(self.classes), features=read)

    def explained_for(self, outputs: Outputs) -> Backbone:
        """The same, where the pixels of a class are those that it has in one image."""
        read, classes = partial(self.head.read, self.backbone), outputs["classes"]
        given = partial(self._of_classes, classes=classes)
        return self.backbone.with_outputs(given, len(self.classes), features=read)

    def _of_classes(self, features: Features, classes: Tensor | None = None) -> Tensor:
        shares = precise(self.head(features)).softmax(dim=1)  # B K h w
        chosen = shares.argmax(dim=1) if classes is None else classes.round().long()
        own = F.one_hot(chosen, shares.shape[1]).movedim(3, 1).to(shares)
        grid = (shares.shape[2], shares.shape[3])
        own = own if classes is None else F.adaptive_avg_pool2d(own, grid)  # parts of each position
        own = torch.where(own.sum(dim=(2, 3), keepdim=True) > 0, own, torch.ones_like(own))  # a class without pixels
        return inverse_sigmoid((shares * own).sum(dim=(2, 3)) / own.sum(dim=(2, 3)))

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The class with the most pixels: B."""
        classes = outputs["classes"].round().long().flatten(1)
        counts = F.one_hot(classes, len(self.classes)).sum(dim=1)
        return counts.argmax(dim=1)

    def explained_part(self, outputs: Outputs, indices: Tensor, size: tuple[int, int]) -> Tensor:
        """The pixels of the explained classes."""
        return outputs["classes"].round().long() == indices[:, None, None]

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """Probabilities: B K -> B K."""
        return logits.sigmoid()
