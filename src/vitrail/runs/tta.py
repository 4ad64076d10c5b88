"""Test-time views: a model's answer to an image averaged over flips and crops of it; slower, and stated apart."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import Unsupported
from vitrail.runs.predictor import Predictor
from vitrail.tasks.task import Task

Views = Literal["flip", "views"]
_SHARE = 0.875  # of a side, in a crop
COUNT = {"flip": 2, "views": 10}


def views_of(images: Tensor, kind: Views) -> list[Tensor]:
    """The images and their mirror images; with "views" also four crops of 7/8 at the corners and theirs.

    uint8 B C H W -> several of them.
    """
    if kind == "flip":
        return [images, images.flip(3)]
    height, width = images.shape[2:]
    tall, wide = round(_SHARE * height), round(_SHARE * width)
    tops, lefts = (0, height - tall), (0, width - wide)
    crops = [images[:, :, top : top + tall, left : left + wide] for top in tops for left in lefts]
    whole = [images, *(_resized(crop, (height, width)) for crop in crops)]
    return [*whole, *(view.flip(3) for view in whole)]


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    larger = F.interpolate(images.float(), size, mode="bicubic", align_corners=False)
    return larger.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class AveragedViews:
    """A model that answers with the mean over views of each image."""

    model: Predictor
    kind: Views

    def __post_init__(self) -> None:
        kind = self.task.config.kind
        if type(self.task).average is Task.average:
            raise Unsupported(f"--tta: answers of task {kind!r} cannot be averaged; leave it out")
        if self.task.gives_maps and self.kind != "flip":
            raise Unsupported(f"--tta {self.kind}: maps of task {kind!r} cannot be averaged over crops; use --tta flip")
        if self.task.gives_maps and not hasattr(self.model, "of_view"):
            raise Unsupported(f"--tta: an exported model of task {kind!r} has no maps to average; evaluate the run")

    @property
    def task(self) -> Task:
        """That of the model."""
        return self.model.task

    @property
    def preprocess(self) -> Preprocess:
        """That of the model."""
        return self.model.preprocess

    @property
    def device(self) -> torch.device | str:
        """That of the model."""
        return getattr(self.model, "device", "cpu")

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The mean over views of fitted images, uint8 B C *image_size."""
        views = views_of(images, self.kind)
        of_view = getattr(self.model, "of_view", None)  # an exported model has outputs alone
        if of_view is None:
            return self.task.average([self.model.outputs(view) for view in views])
        mirrored = [False] * (len(views) // 2) + [True] * (len(views) // 2)
        return self.task.average([of_view(view, mirrored=own) for view, own in zip(views, mirrored, strict=True)])
