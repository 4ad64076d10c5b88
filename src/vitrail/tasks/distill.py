"""Distillation: a student learns from labels and from a teacher that sees the same images."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Positive, Rate
from vitrail.data.dataset import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import LabelsTarget, Schema
from vitrail.errors import ConfigError, InputError
from vitrail.models.backbone import Backbone
from vitrail.models.distilled import Distilled
from vitrail.tasks.classify.classifier import Classifier
from vitrail.tasks.classify.multi_label import MultiLabel
from vitrail.tasks.classify.one_class import Classify, ClassifyConfig
from vitrail.tasks.task import Task, TaskConfig

_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey (ITU-R BT.601)


class Teacher:
    """Any module that turns images into logits, in evaluation mode and without gradients.

    Its parameters are not part of the student. It sees the student's images, augmented as they are, at its own size and
    in its own colours; where both preprocessings are given, normalised as its own were. `state` is its task's: the
    thresholds K from which on it gives a label, where images have several.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        image_size: tuple[int, int] | None = None,
        preprocess: Preprocess | None = None,
        student: Preprocess | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if (preprocess is None) != (student is None):
            raise ConfigError("a teacher's preprocessing needs the student's beside it: give both, or none")
        self.module = module.eval().requires_grad_(False)
        config = module.config if isinstance(module, Backbone) else None
        fixed = None if config is None or config.dynamic_size else config.image_size
        self.image_size = image_size or fixed
        self.channels = None if config is None else config.channels
        self.classes = module.labels if isinstance(module, Backbone) else None
        self._own, self._student, self._thresholds = preprocess, student, (state or {}).get("thresholds")

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The student's images B C H W -> logits B K."""
        if self._own is not None and self._student is not None:
            mean, std = self._student.statistics
            images = images * _column(std, images) + _column(mean, images)
        images = self._coloured(images)
        if self._own is not None:
            images = self._own.scaled(images)
        if self.image_size is not None and tuple(images.shape[2:]) != self.image_size:
            images = F.interpolate(images, size=self.image_size, mode="bicubic", antialias=True)
        self.module.eval().to(images.device)  # it does not move with the student
        logits = self.module(images)
        logits = getattr(logits, "logits", logits)  # Hugging Face's models answer with a record
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise InputError(f"the teacher answers with {type(logits).__name__}; it must give logits B K")
        return logits.float()

    def gives(self, logits: Tensor) -> Tensor:
        """The labels that it gives to images which may have several: logits B K -> zeros and ones B K."""
        least = 0.5 if self._thresholds is None else torch.tensor(self._thresholds, device=logits.device)
        return (logits.sigmoid() >= least).float()

    def _coloured(self, images: Tensor) -> Tensor:
        """Grey images for a teacher of colours, and the other way round."""
        if self.channels is None or images.shape[1] == self.channels:
            return images
        if images.shape[1] == 1:
            return images.expand(-1, self.channels, -1, -1)
        if self.channels == 1 and images.shape[1] == len(_LUMA):
            return (images * _column(_LUMA, images)).sum(dim=1, keepdim=True)
        raise ConfigError(f"the teacher takes {self.channels} channels, the student's images have {images.shape[1]}")


def _column(values: tuple[float, ...], images: Tensor) -> Tensor:
    return torch.tensor(values, device=images.device, dtype=images.dtype).view(1, -1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class DistillConfig(ClassifyConfig, kind="distill"):
    """Classification with a teacher, whose part of the loss has the weight `weight`.

    "soft": the divergence of the student's distribution from the teacher's, both at a `temperature` T, times T^2
    (arXiv:1503.02531). "hard": the class that the teacher names is a second label. "token": the class head learns
    from labels, the distillation head from the class that the teacher names (DeiT, arXiv:2012.12877).

    Where images have several labels, each label is a distribution of its own, yes or no: "soft" is the mean of their
    divergences, and what the teacher names is every label that it gives.
    """

    inferred: ClassVar[bool] = False
    method: Literal["soft", "hard", "token"] = "soft"
    weight: Rate = 0.5
    temperature: Positive = 3.0

    def build(self, backbone: Backbone | None, schema: Schema) -> Task:
        """The student; `learn_from` gives it its teacher."""
        one = not isinstance(next(iter(self.learns(schema).values())), LabelsTarget)
        return (Distill if one else DistillLabels)(self, schema, backbone)

    def stored(self) -> TaskConfig:
        """What is left without the teacher: a classifier."""
        return ClassifyConfig(**{field.name: getattr(self, field.name) for field in fields(ClassifyConfig)})


class _Student(Classifier):
    """What a student of any kind of labels does."""

    config: DistillConfig
    teacher: tuple[Teacher, ...] = ()  # in a tuple, so that state_dict, parameters, train and to do not reach it

    def learn_from(
        self, teacher: nn.Module, *, preprocess: Preprocess | None = None, student: Preprocess | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Takes a teacher."""
        if self.config.method == "token" and getattr(self.backbone, "distillation_head", None) is None:
            raise ConfigError(
                f"distillation by token needs a model with a distillation head, such as deit_tiny_distilled_patch16; "
                f"{type(self.backbone).__name__} has none"
            )
        taken = Teacher(teacher, preprocess=preprocess, student=student, state=state)
        self.teacher = (taken,)
        self._order = _order(taken.classes, self.classes)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The weighted sum of the losses from the labels and from the teacher."""
        if not self.teacher:
            raise ConfigError("distillation needs a teacher: --teacher RUN (teacher= in Python)")
        teacher_logits = self.teacher[0](batch.images)
        if self._order is not None:
            teacher_logits = teacher_logits[:, self._order]
        if teacher_logits.shape[1] != len(self.classes):
            raise ConfigError(f"the teacher has {teacher_logits.shape[1]} classes, the data have {len(self.classes)}")
        if isinstance(self.backbone, Distilled) and self.config.method == "token":
            by_class, by_teacher = self.backbone.heads(self.backbone.features(batch.images))
        else:
            by_class = by_teacher = self.backbone(batch.images)
        found = self.losses(by_class, batch.targets[self.field])
        teaching, agreement = self.teacher_loss(by_teacher.float(), teacher_logits)
        loss = (1 - self.config.weight) * found["loss"] + self.config.weight * teaching
        return found | {"loss": loss, "teacher": teaching.detach(), "agreement": agreement}

    @abstractmethod
    def teacher_loss(self, logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
        """The loss from the teacher's logits B K, and the share of answers on which both agree."""


class Distill(_Student, Classify):
    """A classifier that learns from a teacher as well."""

    config: DistillConfig

    def teacher_loss(self, logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of one class an image."""
        agreement = (logits.detach().argmax(dim=1) == teacher_logits.argmax(dim=1)).float().mean()
        if self.config.method != "soft":
            return F.cross_entropy(logits, teacher_logits.argmax(dim=1)), agreement
        heat = self.config.temperature
        student, teacher = (F.log_softmax(each / heat, dim=1) for each in (logits, teacher_logits))
        return heat**2 * F.kl_div(student, teacher, log_target=True, reduction="batchmean"), agreement


class DistillLabels(_Student, MultiLabel):
    """The same with several labels an image: each label counts alone."""

    config: DistillConfig

    def teacher_loss(self, logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of several labels an image."""
        given = self.teacher[0].gives(teacher_logits)
        agreement = ((logits.detach() > 0) == (given > 0)).float().mean()
        if self.config.method != "soft":
            return F.binary_cross_entropy_with_logits(logits, given), agreement
        heat = self.config.temperature
        student, teacher = (_yes_or_no(each / heat) for each in (logits, teacher_logits))
        divergence = F.kl_div(student, teacher, log_target=True, reduction="sum") / logits.numel()
        return heat**2 * divergence, agreement


def _yes_or_no(logits: Tensor) -> Tensor:
    """The logarithms of the probabilities of either answer: B K -> B K 2."""
    return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1)


def _order(known: Sequence[str] | None, classes: Sequence[str]) -> list[int] | None:
    """Where the teacher has each class of the data; None where it has no names, or the same in the same order."""
    if known is None or tuple(known) == tuple(classes):
        return None
    if missing := [name for name in classes if name not in known]:
        raise ConfigError(
            f"the teacher does not have the class {', '.join(map(repr, missing[:3]))}; it has "
            f"{', '.join(known[:5])}{' and others' if len(known) > 5 else ''}; choose a teacher with the data's classes"
        )
    return [list(known).index(name) for name in classes]
