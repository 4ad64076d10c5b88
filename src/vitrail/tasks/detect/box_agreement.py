"""Whether two sets of boxes are the same answer: for certificates, where the order of equal scores may change."""

from typing import Any, NamedTuple

import numpy as np

from vitrail.tasks.detect.counting import matches
from vitrail.tasks.task import Arrays, distance

Array = np.ndarray[Any, Any]
_NAMES = ("boxes", "scores", "labels")
_SCORE = 0.05  # scores of the same box that differ by less are the same answer


class Compared(NamedTuple):
    """The largest difference over the largest number, the least cosine of all images, which answers are the same.

    `boxes` is the share of boxes that both have, with about the same score; 1 where there are none.
    """

    error: float
    cosine: float
    same: Array  # B bool
    boxes: float


def compared(expected: Arrays, found: Arrays, threshold: float) -> Compared:
    """Boxes B N 4, scores and labels B N of both: all scores, and each box above the threshold with its partner.

    A partner is the box of the same class that overlaps most, by 0.5 or more. A box without one counts as lost: it is
    compared with zeros. Boxes whose score is within a small margin of the threshold may be on either side of it.
    """
    if not len(expected["boxes"]):
        return Compared(0.0, 1.0, np.zeros(0, dtype=bool), 1.0)
    unit = max(float(np.abs(expected["boxes"]).max()), 1e-12)
    first, second, same, shared, every = [], [], [], 0, 0
    for at in range(len(expected["boxes"])):
        one, other = ({name: values[name][at] for name in _NAMES} for values in (expected, found))
        rows, partners, surplus = _paired(one, other, threshold)
        first.append(_vector(one, rows, unit))
        second.append(_vector(other, partners, unit))
        scores = np.where(partners >= 0, other["scores"][partners], np.inf)
        close = np.abs(one["scores"][rows] - scores) <= _SCORE  # R
        same.append(not surplus and bool(close.all()))
        shared, every = shared + int(close.sum()), every + len(rows) + surplus
    wide = max(len(vector) for vector in first)
    pair = (np.stack([np.pad(vector, (0, wide - len(vector))) for vector in part]) for part in (first, second))
    return Compared(*distance(*pair), np.array(same), shared / every if every else 1.0)


def _paired(one: Arrays, other: Arrays, threshold: float) -> tuple[Array, Array, int]:
    """The rows of the boxes that count, their partners (-1 for none), and how many surplus boxes the other has."""
    rows = np.nonzero(one["scores"] >= threshold)[0]
    partners = matches(one["boxes"][rows], one["labels"][rows].round(), other["boxes"], other["labels"].round())
    kept = (partners >= 0) | (one["scores"][rows] >= threshold + _SCORE)
    sure = set(np.nonzero(other["scores"] >= threshold + _SCORE)[0].tolist())
    return rows[kept], partners[kept], len(sure - set(partners.tolist()))


def _vector(boxes: Arrays, rows: Array, unit: float) -> Array:
    """A 1, all scores in order, then the boxes of some rows in units of the largest; zeros for a row of -1."""
    chosen = np.where(rows[:, None] >= 0, boxes["boxes"][rows] / unit, 0.0)  # R 4
    return np.concatenate([np.ones(1), -np.sort(-boxes["scores"]), chosen.flatten()])
