"""COCO's average precision with each image matched once, so that any number of copies of each image can be measured.

Which true box a found one takes depends on their image alone, and is pycocotools' decision. Precision by recall is then
that of all images, each counted as often as it is drawn: with each image once, the numbers of pycocotools' `accumulate`
to the last bit. Of equal scores, all copies of a box come together here; pycocotools takes one image after another, so
that copies alternate with other boxes, and precision can differ a little.
"""

import contextlib
import importlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from vitrail.data.targets.boxes_target import AREA, BOX, CLASS, IGNORE
from vitrail.errors import ConfigError
from vitrail.tasks.detect.counting import Array, Counted, Image

SIZES = 4  # all boxes; less than 32 x 32 pixels of the original, less than 96 x 96, more


class _Found(NamedTuple):
    """The found boxes of a class, of true boxes of a size: the best score first."""

    image: Array  # N: the number of the image
    right: Array  # T N: takes a true box at IoU 0.5, 0.55, ..., 0.95
    wrong: Array  # T N: neither right nor to be ignored
    real: Array  # I: true boxes of each image


@dataclass(frozen=True)
class Matches:
    """Images I whose boxes are matched, by class K and size A."""

    found: Sequence[Sequence[_Found | None]]  # K A; None where there is no box
    recalls: Array  # R: where precision is read
    counted: Sequence[Counted]  # of each image
    boxes: Array  # I K: true boxes that count

    @classmethod
    def of(cls, images: Sequence[Image], classes: int) -> Self:
        """Matches the boxes of images."""
        made = evaluated(images, classes)
        rows = [made.evalImgs[start : start + len(images)] for start in range(0, len(made.evalImgs), len(images))]
        found = [_sorted(row) for row in rows]
        counts = [_classes_of(image, classes) for image in images]
        return cls(
            [found[start : start + SIZES] for start in range(0, len(found), SIZES)],
            np.asarray(made.params.recThrs),
            [Counted.of([image]) for image in images],
            np.stack(counts),
        )

    def curves(self, times: Array) -> tuple[Array, Array]:
        """Precision T R K A and recall T K A of images drawn so many times I; -1 where there is no true box."""
        shape = (len(self.found), SIZES)
        precision, recall = -np.ones((10, len(self.recalls), *shape)), -np.ones((10, *shape))
        for label, sizes in enumerate(self.found):
            for size, one in enumerate(sizes):
                if one is not None and (real := int(one.real @ times)):
                    precision[:, :, label, size], recall[:, label, size] = self._curve(one, times[one.image], real)
        return precision, recall

    def _curve(self, one: _Found, weights: Array, real: int) -> tuple[Array, Array]:
        """Precision T R and recall T; the weights N of boxes are those of their images."""
        best = np.zeros((len(one.right), len(self.recalls)))
        if not len(weights):
            return best, np.zeros(len(best))
        right, wrong = (np.cumsum(part * weights, axis=1, dtype=float) for part in (one.right, one.wrong))
        reached = right / real
        precise = right / (wrong + right + np.spacing(1))
        precise = np.maximum.accumulate(precise[:, ::-1], axis=1)[:, ::-1]  # the best of this recall or more
        for row, (recall, precision) in enumerate(zip(reached, precise, strict=True)):
            at = np.searchsorted(recall, self.recalls, side="left")
            known = at < len(recall)
            best[row, known] = precision[at[known]]
        return best, reached[:, -1]

    def counts(self, times: Array) -> Counted:
        """Boxes that are right at IoU 0.5 of images drawn so many times I."""
        copies = np.repeat(times, [len(one.scores) for one in self.counted])
        scores, right = (np.concatenate([one[part] for one in self.counted]) for part in (0, 1))
        real = int(np.array([one.real for one in self.counted]) @ times)
        return Counted(np.repeat(scores, copies), np.repeat(right, copies), real)


def _sorted(rows: Sequence[Any]) -> _Found | None:
    """What pycocotools found in the images of a class and a size, over images in the order of scores."""
    known = [(number, row) for number, row in enumerate(rows) if row is not None]
    if not known:
        return None
    real = np.zeros(len(rows), dtype=np.int64)
    for number, row in known:
        real[number] = np.count_nonzero(row["gtIgnore"] == 0)
    image = np.repeat([number for number, _ in known], [len(row["dtScores"]) for _, row in known])
    order = np.argsort(-np.concatenate([row["dtScores"] for _, row in known]), kind="mergesort")
    taken, ignored = (
        np.concatenate([row[name] for _, row in known], axis=1)[:, order] != 0 for name in ("dtMatches", "dtIgnore")
    )
    return _Found(image[order], taken & ~ignored, ~taken & ~ignored, real)


def _classes_of(image: Image, classes: int) -> Array:
    return np.bincount(image.true[image.true[:, IGNORE] == 0][:, CLASS].astype(int), minlength=classes)


def evaluated(images: Sequence[Image], classes: int) -> Any:
    """Pycocotools' evaluation of all images: each is matched, nothing is accumulated."""
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


def _library() -> tuple[Any, Any]:
    try:
        coco, evaluation = (importlib.import_module(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    except ImportError as error:
        raise ConfigError("average precision needs pycocotools: pip install pycocotools") from error
    return coco.COCO, evaluation.COCOeval
