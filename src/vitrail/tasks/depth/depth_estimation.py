"""Depth estimation: a backbone and a head that gives each pixel a distance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Rate
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import Schema
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.errors import BrokenImage
from vitrail.layers.bilinear import resized
from vitrail.layers.boxes import precise
from vitrail.models.backbone import Backbone, Features
from vitrail.models.heads import DepthHead, DepthHeadConfig, DptConfig
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples
from vitrail.tasks.dense import DenseConfig
from vitrail.tasks.depth import depth_report
from vitrail.tasks.depth.depth_answer import COLUMNS, SCHEMA, DepthAnswer
from vitrail.tasks.depth.depth_metrics import DepthMeter, depth_errors, silog
from vitrail.tasks.task import DISTANCES, Agreement, Arrays, Outputs, Task, distance, require_finite

_SAMPLED = 100  # depth maps that the usual distance is measured on
_NEAREST = 1e-6  # the least distance of which a logarithm is taken
_SAME = 0.01  # relative difference, in the mean, of the same answer


@dataclass(frozen=True, kw_only=True)
class DepthConfig(DenseConfig, kind="depth"):
    """A distance for each pixel, by `head`; `focus` is how much of the error of scale the loss forgives.

    `zooms` allows augmentation that shows parts larger or smaller, which makes distances wrong: for relative depth.
    `best_metric` chooses the best epoch; "auto" is delta 1, with `zooms` that of distances scaled to the true median.
    """

    target_kinds: ClassVar[tuple[str, ...]] = ("depth",)
    head: DepthHeadConfig = DptConfig()
    focus: Rate = 0.5
    zooms: bool = False
    best_metric: Literal["auto", "delta1", "delta1_aligned"] = "auto"

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """Without random crops and mosaics: what is shown larger looks nearer than it is."""
        schema, augment, mix, notes = super().adapt(schema, augment, mix)
        if not self.zooms and (augment.crops or augment.mosaic):
            augment = replace(augment, crop="none" if augment.crops else augment.crop, mosaic=0.0)
            notes.append(
                "random crops and mosaics are off: what is shown larger looks nearer than it is (for relative depth: "
                "--set task.zooms=true)"
            )
        return schema, augment, mix, notes

    def build(self, backbone: Backbone | None, schema: Schema) -> "Depth":
        """The task of the schema's depth maps."""
        return Depth(self, schema, backbone)


class Depth(Task):
    """A backbone and a head; depth maps have the size of the model's input until an answer is placed."""

    best_metric = "delta1"
    printed = ("loss", "abs_rel", "delta1", "delta1_aligned")
    tie_metric = "abs_rel"
    about_metrics = depth_report.METRICS
    columns = COLUMNS
    answered_by: ClassVar[Mapping[str, int]] = {"depth": 3}
    output_names = ("depth",)
    gives_maps = True
    int8_loss = 0.005
    likelihood = DISTANCES
    config: DepthConfig
    head: DepthHead
    scale: Tensor

    def __init__(self, config: DepthConfig, schema: Schema, backbone: Backbone | None = None) -> None:
        super().__init__(config, schema, backbone)
        (self.field,) = config.learns(schema)
        target = schema[self.field]
        assert isinstance(target, DepthTarget)  # noqa: S101  (`learns` says so)
        self.target = target
        if config.best_metric == "delta1_aligned" or (config.best_metric == "auto" and config.zooms):
            self.best_metric, self.tie_metric = "delta1_aligned", "abs_rel_aligned"
        self.register_buffer("scale", torch.ones(()), persistent=False)  # the usual distance
        if backbone is not None:
            self.head = config.head.build(backbone)
            self.layers = self.head.layers

    # Learning

    def fit(self, targets: Targets) -> None:
        """Takes over the median distance of some training images: a new model starts there."""
        values, medians = targets[self.field], list[Tensor]()
        for index in range(0, len(values), max(len(values) // _SAMPLED, 1)):
            try:
                depth = self.target.load(values[index]) if values.ndim == 2 else values[index]
            except BrokenImage:  # left out when images are read
                continue
            if bool((depth > 0).any()):
                medians.append(depth[depth > 0].float().median())
        if medians:
            self.scale.copy_(torch.stack(medians).median())

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The scale-invariant error of logarithms."""
        truth = batch.targets[self.field].float()
        return {"loss": silog(self.depth(batch.images), truth, focus=self.config.focus)}

    def depth(self, images: Tensor) -> Tensor:
        """Distances at the size of the images: B C H W -> B H W."""
        values = self.head(self.head.read(self.backbone, images))
        found = self.head.positive(precise(values)) * self.scale
        return resized(found[:, None], images.shape[2:])[:, 0]

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Distances: B H W."""
        return {"depth": self.depth(images)}

    # Measuring

    def metrics(self) -> DepthMeter:
        """A fresh meter for one evaluation."""
        return DepthMeter(self.field)

    def state(self) -> dict[str, Any]:
        """The usual distance."""
        return {"scale": float(self.scale)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        if "scale" in state:
            self.scale.fill_(float(state["scale"]))

    # Answers

    def of_view(self, images: Tensor, *, mirrored: bool) -> dict[str, Tensor]:
        """Distances: B H W."""
        depth = self.depth(images)
        return {"depth": depth.flip(2) if mirrored else depth}

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """Geometric means of distances."""
        return {"depth": torch.stack([one["depth"].clamp(min=_NEAREST).log() for one in outputs]).mean(dim=0).exp()}

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """A distance for each pixel; `top` has no meaning here."""
        return [DepthAnswer.of(depth) for depth in require_finite(outputs["depth"])]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The mean relative error; 0 for an image without a depth map."""
        return depth_errors(outputs["depth"], targets[self.field])[:, 0].nan_to_num(0.0)

    def answer_schema(self) -> dict[str, Any]:
        """A range, and a map."""
        return SCHEMA

    # Reports

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """Errors with intervals, their distribution, worst images."""
        return depth_report.sections(results, worst=examples.worst)

    def lead(self, results: Mapping[str, Any]) -> str:
        """The mean relative error."""
        return depth_report.lead(results)

    def intervals(self, results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Bootstrapped over images."""
        return depth_report.intervals(results["errors"])

    # Artefacts

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """Of distances."""
        error, cosine = distance(expected["depth"], found["depth"])
        return Agreement(error, cosine, float(self.same(expected, found).mean()))

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """Distances that differ by less than 1 %, in the mean."""
        first, second = (values["depth"].reshape(len(values["depth"]), -1) for values in (expected, found))
        return (np.abs(first - second) / np.maximum(np.abs(first), 1e-6)).mean(axis=1) <= _SAME

    # Explanations

    def explained(self) -> Backbone:
        """A model whose one output is the mean of the head's values, usually logarithms of distances."""
        mean = _Mean(self.head, self.backbone)
        return self.backbone.with_outputs(mean.output, 1, features=mean.features)


class _Mean:
    """The mean of a head's values; as methods of an object, a copy of the view reads the copy of the backbone."""

    def __init__(self, head: DepthHead, backbone: Backbone) -> None:
        self.head, self.backbone = head, backbone
        self._read: list[Features] = []

    def features(self, images: Tensor) -> Features:
        self._read = self.head.read(self.backbone, images)
        return self._read[-1]

    def output(self, last: Features) -> Tensor:
        return precise(self.head([*self._read[:-1], last])).mean(dim=(1, 2))[:, None]  # B 1
