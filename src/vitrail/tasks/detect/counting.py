"""Boxes that are right, superfluous and missed at IoU 0.5: for thresholds, confusion and the worst images."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.targets.boxes_target import BOX, CLASS, IGNORE
from vitrail.layers.boxes import iou

Array = np.ndarray[Any, Any]
LEAST = 0.5  # the IoU from which a box counts as found


class Image(NamedTuple):
    """What is true of an image, and what was found: in pixels of the model's input."""

    true: Array  # M 7, as a target stores it, without padding
    boxes: Array  # N 4: corners
    scores: Array  # N
    labels: Array  # N


def overlaps(first: Array, second: Array) -> Array:
    """IoU of corners N 4 and M 4: N M."""
    pair = (torch.from_numpy(np.ascontiguousarray(one, dtype=np.float64)) for one in (first, second))
    left, right = pair
    return iou(left[:, None], right[None]).numpy()


def matches(boxes: Array, labels: Array, true: Array, true_labels: Array | None) -> Array:
    """The true box of each found one, -1 for none: N.

    In the order of the boxes, each takes the free true box of its class that it covers best; of any class where
    `true_labels` is None.
    """
    found = np.full(len(boxes), -1)
    if not len(boxes) or not len(true):
        return found
    share = overlaps(boxes, true)
    if true_labels is not None:
        share = np.where(labels[:, None] == true_labels[None], share, 0.0)
    for at in range(len(boxes)):
        best = int(share[at].argmax())
        if share[at, best] >= LEAST:
            found[at] = best
            share[:, best] = 0.0
    return found


class Counted(NamedTuple):
    """All boxes that were found, and how many there are to find."""

    scores: Array  # N
    right: Array  # N bool
    real: int

    @classmethod
    def of(cls, images: Sequence[Image]) -> "Counted":
        """Boxes that lie in one to ignore count neither as right nor as wrong."""
        scores, right, real = [np.zeros(0)], [np.zeros(0, dtype=bool)], 0
        for image in images:
            ignored = image.true[:, IGNORE] > 0
            found = matches(image.boxes, image.labels, image.true[:, BOX], image.true[:, CLASS])
            skipped = ignored[found] & (found >= 0) if len(ignored) else np.zeros(len(found), dtype=bool)
            scores.append(image.scores[~skipped])
            right.append((found >= 0)[~skipped])
            real += int((~ignored).sum())
        return cls(np.concatenate(scores), np.concatenate(right), real)

    def at(self, threshold: float) -> tuple[int, int, int]:
        """At a threshold: boxes that are right, boxes that are said, boxes that there are."""
        kept = self.scores >= threshold
        return int((self.right & kept).sum()), int(kept.sum()), self.real


def best_threshold(counted: Counted) -> tuple[float, float]:
    """The threshold with the best F1, and this F1; between two scores, so that neither lies on it."""
    if not counted.right.any():
        return 0.5, 0.0
    order = np.argsort(-counted.scores, kind="stable")
    scores, right = counted.scores[order], counted.right[order].cumsum()
    f1 = 2 * right / (np.arange(1, len(right) + 1) + max(counted.real, 1))
    last = np.append(scores[1:] < scores[:-1], True)  # equal scores are kept together
    best = int(np.where(last, f1, -1.0).argmax())
    below = scores[best + 1] if best + 1 < len(scores) else 0.0
    return float((scores[best] + below) / 2), float(f1[best])


def confusion(images: Sequence[Image], classes: int, threshold: float) -> Tensor:
    """How often a true class (row) was found as another (column), at IoU 0.5; the last is "no box": K+1 K+1."""
    counts = torch.zeros(classes + 1, classes + 1, dtype=torch.int64)
    for image in images:
        kept = image.scores >= threshold
        boxes, labels = image.boxes[kept], image.labels[kept].clip(0, classes - 1)
        real = image.true[image.true[:, IGNORE] == 0]
        found = matches(boxes, labels, real[:, BOX], None)
        for label, at in zip(labels, found, strict=True):
            counts[int(real[at, CLASS]) if at >= 0 else classes, int(label)] += 1
        for at in set(range(len(real))) - set(found.tolist()):
            counts[int(real[at, CLASS]), classes] += 1
    return counts


def mistakes(image: Image, threshold: float) -> float:
    """The share of boxes that are superfluous or missed, of all that were found or true: 0 for none."""
    right, said, real = Counted.of([image]).at(threshold)
    every = said + real - right
    return (every - right) / every if every else 0.0
