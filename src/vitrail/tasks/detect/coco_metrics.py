"""COCO's average precision of boxes, through pycocotools: over IoU 0.5 to 0.95, by class and by size."""

import contextlib
import importlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import Targets
from vitrail.data.targets.boxes_target import AREA, BOX, CLASS, IGNORE, BoxesTarget
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.detect.counting import Counted, Image, best_threshold, confusion
from vitrail.tasks.task import Outputs

Array = np.ndarray[Any, Any]
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
        evaluated = _evaluated(self.images, len(self.classes))
        counts = Counted.of(self.images)
        chosen, best = best_threshold(counts)
        right, said, real = counts.at(self.threshold)
        return _averages(evaluated) | {
            "f1": 2 * right / max(said + real, 1),
            "precision_at": right / max(said, 1),
            "recall_at": right / max(real, 1),
            "best_f1": best,
            "threshold": chosen,
            "images": len(self.images),
            "boxes": real,
            **_by_class(evaluated, self.images, len(self.classes)),
            "confusion": confusion(self.images, len(self.classes), self.threshold),
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


def _evaluated(images: Sequence[Image], classes: int) -> Any:
    """Pycocotools' evaluation of all images."""
    coco, evaluation = _library()
    scales = _scales(images)
    true: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, (image, scale) in enumerate(zip(images, scales, strict=True), start=1):
        for row in image.true:
            one = {"image_id": number, "category_id": int(row[CLASS]), "bbox": _sides(row[BOX] * scale)}
            crowd = int(row[IGNORE] > 0)
            true.append(one | {"id": len(true) + 1, "area": float(row[AREA]), "iscrowd": crowd, "ignore": crowd})
        for box, score, label in zip(image.boxes * scale, image.scores, image.labels, strict=True):
            sides = _sides(box)
            one = {"image_id": number, "category_id": int(label), "bbox": sides, "score": float(score)}
            found.append(one | {"id": len(found) + 1, "area": sides[2] * sides[3], "iscrowd": 0})
    names = [{"id": number} for number in range(classes)]
    numbers = [{"id": number} for number in range(1, len(images) + 1)]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        truth, answers = coco(), coco()
        for one, rows in ((truth, true), (answers, found)):
            one.dataset = {"images": numbers, "categories": names, "annotations": rows}
            one.createIndex()
        made = evaluation(truth, answers, "bbox")
        made.evaluate()
        made.accumulate()
    return made


def _scales(images: Sequence[Image]) -> list[float]:
    """From pixels of the model's input to about those of the original: sizes are counted in these.

    IoU does not change where all boxes of an image are scaled alike. An image without boxes takes the median of others.
    """
    ratios = []
    for image in images:
        sides = image.true[:, 2:4] - image.true[:, :2]
        shown = np.maximum(sides.prod(axis=1), 1e-9)
        ratios.append(float(np.sqrt((image.true[:, AREA] / shown).max())) if len(shown) else math.nan)
    usual = float(np.nanmedian(ratios)) if not np.isnan(ratios).all() else 1.0
    return [usual if math.isnan(ratio) or ratio <= 0 else ratio for ratio in ratios]


def _sides(box: Array) -> list[float]:
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def _averages(evaluated: Any) -> dict[str, float]:
    """Means over classes and recalls; a size without boxes has none."""
    precision, recall = evaluated.eval["precision"], evaluated.eval["recall"]  # T R K A M; T K A M
    results = {"ap": _mean(precision[:, :, :, 0, -1]), "ap50": _mean(precision[0, :, :, 0, -1])}
    results |= {"ap75": _mean(precision[5, :, :, 0, -1]), "recall": _mean(recall[:, :, 0, -1])}
    found = {name: value if math.isfinite(value) else 0.0 for name, value in results.items()}
    for index, size in enumerate(_SIZES, start=1):
        if math.isfinite(value := _mean(precision[:, :, :, index, -1])):
            found[f"ap_{size}"] = value
    return found


def _mean(values: Array) -> float:
    real = values[values > -1]  # -1: there is no such box
    return float(real.mean()) if real.size else math.nan


def _by_class(evaluated: Any, images: Sequence[Image], classes: int) -> dict[str, Tensor]:
    precision = evaluated.eval["precision"]
    boxes = np.concatenate([image.true for image in images])
    counts = np.bincount(boxes[boxes[:, IGNORE] == 0][:, CLASS].astype(int), minlength=classes)
    return {
        "ap_of": torch.tensor([_mean(precision[:, :, label, 0, -1]) for label in range(classes)]),
        "ap50_of": torch.tensor([_mean(precision[0, :, label, 0, -1]) for label in range(classes)]),
        "precision": torch.from_numpy(precision[0, :, :, 0, -1].T.copy()).clamp(min=0),  # K 101
        "boxes_of": torch.from_numpy(counts),
    }


def _library() -> tuple[Any, Any]:
    try:
        coco, evaluation = (importlib.import_module(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    except ImportError as error:
        raise ConfigError("average precision needs pycocotools: pip install pycocotools") from error
    return coco.COCO, evaluation.COCOeval
