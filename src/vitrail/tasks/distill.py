"""Distillation: a student learns from labels and from a teacher that sees the same images."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError, InputError
from vitrail.models.backbone import Backbone
from vitrail.models.distilled import Distilled
from vitrail.tasks.classify import Classify

Kind = Literal["hard", "soft", "token"]
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey (ITU-R BT.601)


class Normalisation(NamedTuple):
    """The mean and deviation, of each channel and for pixels from 0 to 1, that a model's images were brought to."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Teacher:
    """Any module that turns images into logits, in evaluation mode and without gradients.

    It is no part of the student: no parameter, no state. It sees the student's images, augmented as they are, at
    its own size and in its own colours; where both normalisations are given, in its own. `thresholds` K say from which
    probability on it gives a label, where images have several.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        image_size: tuple[int, int] | None = None,
        normalisation: Normalisation | None = None,
        student_normalisation: Normalisation | None = None,
        thresholds: Sequence[float] | None = None,
    ) -> None:
        if (normalisation is None) != (student_normalisation is None):
            raise ConfigError("a teacher's normalisation needs the student's beside it: both must be given, or none")
        self.module = module.eval().requires_grad_(False)
        config = module.config if isinstance(module, Backbone) else None
        fixed = None if config is None or config.dynamic_size else config.image_size
        self.image_size = image_size or fixed
        self.channels = None if config is None else config.channels
        self.classes = module.labels if isinstance(module, Backbone) else None
        self._own, self._student, self._thresholds = normalisation, student_normalisation, thresholds

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The student's images B C H W -> logits B K."""
        if self._own is not None and self._student is not None:
            images = images * _column(self._student.std, images) + _column(self._student.mean, images)
        images = self._coloured(images)
        if self._own is not None:
            images = (images - _column(self._own.mean, images)) / _column(self._own.std, images)
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


class Distill(Classify):
    """Classification with a teacher; the teacher's part of the loss has the weight `weight`.

    "soft": the divergence of the student's distribution from the teacher's, both at a `temperature` T, times T^2
    (arXiv:1503.02531). "hard": the class that the teacher names is a second label. "token": the class head learns
    from labels, the distillation head from the class that the teacher names (DeiT, arXiv:2012.12877).

    With `multi_label` each label is a distribution of its own, yes or no: "soft" is the mean of their divergences,
    and what the teacher names is every label that it gives.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        teacher: Teacher | nn.Module,
        classes: Sequence[str],
        multi_label: bool = False,
        kind: Kind = "soft",
        weight: float = 0.5,
        temperature: float = 3.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone, classes=classes, multi_label=multi_label, label_smoothing=label_smoothing)
        if kind == "token" and getattr(backbone, "distillation_head", None) is None:
            raise ConfigError(
                f"distillation by token needs a model with a distillation head, such as deit_tiny_distilled_patch16; "
                f"{type(backbone).__name__} has none"
            )
        if not 0 <= weight <= 1 or temperature <= 0:
            raise ConfigError(f"weight is {weight}, temperature {temperature}; weight is 0 to 1, temperature above 0")
        self.kind, self.weight, self.temperature = kind, weight, temperature
        # Not a module here, so that state_dict, parameters, train and to do not reach it.
        self.teacher = teacher if isinstance(teacher, Teacher) else Teacher(teacher)
        self._order = _order(self.teacher.classes, self.classes)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The weighted sum of what the labels and what the teacher ask for."""
        taught = self.teacher(batch.images)
        if self._order is not None:
            taught = taught[:, self._order]
        if taught.shape[1] != len(self.classes):
            raise ConfigError(f"the teacher knows {taught.shape[1]} classes, the data have {len(self.classes)}")
        if isinstance(self.backbone, Distilled) and self.kind == "token":
            by_class, by_teacher = self.backbone.heads(self.backbone.features(batch.images))
        else:
            by_class = by_teacher = self.outputs(batch.images)
        found = self.losses(by_class, batch.labels)
        teaching, agreement = (self._several if self.multi_label else self._one)(by_teacher.float(), taught)
        loss = (1 - self.weight) * found["loss"] + self.weight * teaching
        return found | {"loss": loss, "teacher": teaching.detach(), "agreement": agreement}

    def _one(self, logits: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        """What the teacher asks for where an image has one label, and the share of images on which both agree."""
        agreement = (logits.detach().argmax(dim=1) == taught.argmax(dim=1)).float().mean()
        if self.kind != "soft":
            return F.cross_entropy(logits, taught.argmax(dim=1)), agreement
        student, teacher = (F.log_softmax(each / self.temperature, dim=1) for each in (logits, taught))
        divergence = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
        return self.temperature**2 * divergence, agreement

    def _several(self, logits: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        """The same where it may have several: each label counts alone, in the loss and in the agreement."""
        given = self.teacher.gives(taught)
        agreement = ((logits.detach() > 0) == (given > 0)).float().mean()
        if self.kind != "soft":
            return F.binary_cross_entropy_with_logits(logits, given), agreement
        student, teacher = (_yes_or_no(each / self.temperature) for each in (logits, taught))
        divergence = F.kl_div(student, teacher, log_target=True, reduction="sum") / logits.numel()
        return self.temperature**2 * divergence, agreement


def _yes_or_no(logits: Tensor) -> Tensor:
    """The logarithms of the probabilities of either answer: B K -> B K 2."""
    return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1)


def _order(taught: Sequence[str] | None, classes: Sequence[str]) -> list[int] | None:
    """Where the teacher has each class of the data; None where it has no names, or the same in the same order."""
    if taught is None or tuple(taught) == tuple(classes):
        return None
    if missing := [name for name in classes if name not in taught]:
        raise ConfigError(
            f"the teacher does not know {', '.join(map(repr, missing[:3]))}, of which there are images, but "
            f"{', '.join(taught[:5])}{' and others' if len(taught) > 5 else ''}; teach by a model of the data's classes"
        )
    return [list(taught).index(name) for name in classes]
