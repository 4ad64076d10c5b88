"""IoU of classes over all pixels of a data set."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets.mask_target import IGNORE
from vitrail.errors import DataError
from vitrail.tasks.task import Outputs


class MaskMeter:
    """Counts pixels by true and predicted class."""

    def __init__(self, field: str, classes: Sequence[str]) -> None:
        self.field, self.classes = field, tuple(classes)
        self.confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        self.images = 0

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in class maps B H W, and the true ones; images without a mask do not count."""
        truth, found = targets[self.field].cpu(), outputs["classes"].cpu()
        self.confusion += pixel_confusion(truth, found, len(self.classes))
        self.images += int((truth != IGNORE).flatten(1).any(dim=1).sum())

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        self.confusion += other.confusion
        self.images += other.images

    def compute(self) -> Mapping[str, Any]:
        """Numbers: miou, mean over classes that occur, accuracy of pixels, mean accuracy of classes, images.

        Tensors: iou_of and recall_of K (NaN where a class does not occur), confusion K K, pixels_of K.
        """
        if not self.images:
            raise DataError("no images were evaluated; the data set is empty, or no image has a mask")
        right = self.confusion.diagonal().double()
        true, said = self.confusion.sum(dim=1).double(), self.confusion.sum(dim=0).double()
        iou, recall = right / (true + said - right), right / true  # 0 / 0 is NaN
        return {
            "miou": float(iou.nanmean()),
            "pixel_accuracy": float(right.sum() / true.sum()),
            "class_accuracy": float(recall.nanmean()),
            "images": self.images,
            "iou_of": iou,
            "recall_of": recall,
            "pixels_of": true.long(),
            "confusion": self.confusion.clone(),
        }


def pixel_confusion(truth: Tensor, found: Tensor, classes: int) -> Tensor:
    """How many pixels of each true class (row) were given each class (column): B H W, B H W -> K K."""
    known = truth != IGNORE
    pairs = truth[known].long() * classes + found[known].round().long().clamp(0, classes - 1)
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
