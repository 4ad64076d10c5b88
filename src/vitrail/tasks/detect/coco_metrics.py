"""COCO's average precision of boxes, through pycocotools: over IoU 0.5 to 0.95, by class and by size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets.boxes_target import CLASS, BoxesTarget
from vitrail.errors import DataError
from vitrail.tasks.detect.coco_matches import Matches
from vitrail.tasks.detect.counting import Array, Image, best_threshold, confusion
from vitrail.tasks.repeated import Results
from vitrail.tasks.task import Outputs

_SIZES = ("small", "medium", "large")  # less than 32 x 32 pixels of the original, less than 96 x 96, more
_MOST = 100  # boxes of an image that count, those with the best scores


class BoxMeter:
    """Keeps the boxes of all images that were annotated; `threshold` is that of the answers."""

    def __init__(self, field: str, classes: Sequence[str], threshold: float) -> None:
        self.field, self.classes, self.threshold = field, tuple(classes), threshold
        self.images: list[Image] = []

    def update(self, outputs: Outputs, targets: Targets) -> None:
        """Takes in boxes B N 4, scores and labels B N, and the truth B M 7."""
        self.images += images_of(outputs, targets[self.field])

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        self.images += other.images

    def compute(self) -> Mapping[str, Any]:
        """Numbers: ap, ap50, ap75, by size where there are such boxes, recall; f1 at the threshold; the best threshold.

        Tensors: ap_of and ap50_of K (NaN where a class has no box), precision K 101 at IoU 0.5 by recall, boxes_of K,
        confusion K+1 K+1 at the threshold, where the last is "no box".
        """
        if not self.images:
            raise DataError("no images were evaluated; the data set is empty, or no image was annotated")
        matches = Matches.of(self.images, len(self.classes))
        return self._of(matches, np.ones(len(self.images), dtype=np.int64)) | {
            "confusion": confusion(self.images, len(self.classes), self.threshold)
        }

    def repeated(self, parts: Sequence[Self]) -> Results:
        """What `compute` says, without confusion, of parts that are merged so many times each; boxes are matched once.

        The size of found boxes in images without true ones is that among all parts.
        """
        whole = Matches.of([image for part in parts for image in part.images], len(self.classes))
        images = [len(part.images) for part in parts]

        def results(times: Sequence[int]) -> Mapping[str, Any]:
            drawn = np.repeat(np.asarray(times, dtype=np.int64), images)
            if not drawn.any():
                raise DataError("no images were drawn")
            return self._of(whole, drawn)

        return results

    def _of(self, matches: Matches, times: Array) -> dict[str, Any]:
        """Everything but confusion, of images drawn so many times I."""
        precision, recall = matches.curves(times)
        counts = matches.counts(times)
        chosen, best = best_threshold(counts)
        right, said, real = counts.at(self.threshold)
        return _averages(precision, recall) | {
            "f1": 2 * right / max(said + real, 1),
            "precision_at": right / max(said, 1),
            "recall_at": right / max(real, 1),
            "best_f1": best,
            "threshold": chosen,
            "images": int(times.sum()),
            "boxes": real,
            "ap_of": torch.tensor([_mean(precision[:, :, label, 0]) for label in range(len(self.classes))]),
            "ap50_of": torch.tensor([_mean(precision[0, :, label, 0]) for label in range(len(self.classes))]),
            "precision": torch.from_numpy(precision[0, :, :, 0].T.copy()).clamp(min=0),  # K 101
            "boxes_of": torch.from_numpy(times @ matches.boxes),
        }


def images_of(outputs: Outputs, values: Tensor) -> list[Image]:
    """The images of a batch that were annotated."""
    boxes, scores, labels = (outputs[name].detach().float().cpu().numpy() for name in ("boxes", "scores", "labels"))
    known, truth = BoxesTarget.known(values).tolist(), values.float().cpu().numpy()
    found = []
    for at, is_known in enumerate(known):
        if is_known:
            order = np.argsort(-scores[at], kind="stable")[:_MOST]
            real = truth[at][truth[at][:, CLASS] >= 0]
            found.append(Image(real, boxes[at][order], scores[at][order], labels[at][order].round().astype(int)))
    return found


def _averages(precision: Array, recall: Array) -> dict[str, float]:
    """Means over classes and recalls, of T R K A and T K A; a size without boxes has none."""
    results = {"ap": _mean(precision[:, :, :, 0]), "ap50": _mean(precision[0, :, :, 0])}
    results |= {"ap75": _mean(precision[5, :, :, 0]), "recall": _mean(recall[:, :, 0])}
    found = {name: value if math.isfinite(value) else 0.0 for name, value in results.items()}
    for index, size in enumerate(_SIZES, start=1):
        if math.isfinite(value := _mean(precision[:, :, :, index])):
            found[f"ap_{size}"] = value
    return found


def _mean(values: Array) -> float:
    real = values[values > -1]  # -1: there is no such box
    return float(real.mean()) if real.size else math.nan
