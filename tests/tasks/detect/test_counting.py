"""Right, superfluous and missed boxes; thresholds; confusion."""

import numpy as np
import pytest

from vitrail.tasks.detect.counting import Counted, Image, best_threshold, confusion, matches, mistakes, overlaps

TRUE = np.array([[0, 0, 10, 10, 0, 0, 100], [20, 20, 40, 40, 1, 0, 400], [60, 60, 70, 70, 0, 1, 100]], dtype=float)


def image(boxes, scores, labels, true=TRUE):
    return Image(true, np.array(boxes, dtype=float).reshape(-1, 4), np.array(scores), np.array(labels, dtype=int))


FOUND = image(
    [[0, 0, 10, 9], [20, 20, 40, 41], [0, 0, 9, 10], [60, 60, 70, 70], [80, 80, 90, 90]],
    [0.9, 0.8, 0.7, 0.6, 0.5],
    [0, 0, 0, 0, 1],
)


def test_a_true_box_is_found_once():
    assert matches(FOUND.boxes, FOUND.labels, TRUE[:, :4], TRUE[:, 4]).tolist() == [0, -1, -1, 2, -1]
    assert matches(FOUND.boxes, FOUND.labels, TRUE[:, :4], None).tolist() == [0, 1, -1, 2, -1]
    assert matches(FOUND.boxes[:0], FOUND.labels[:0], TRUE[:, :4], None).tolist() == []
    assert overlaps(FOUND.boxes[:1], TRUE[:1, :4]) == pytest.approx(0.9)


def test_ignored_boxes_are_neither_right_nor_wrong():
    counted = Counted.of([FOUND])
    assert counted.scores.tolist() == [0.9, 0.8, 0.7, 0.5]
    assert counted.right.tolist() == [True, False, False, False]
    assert counted.real == 2
    assert counted.at(0.75) == (1, 2, 2)


def test_the_best_threshold_lies_between_scores():
    threshold, f1 = best_threshold(Counted.of([FOUND]))
    assert 0.8 < threshold < 0.9
    assert f1 == pytest.approx(2 / 3)
    assert best_threshold(Counted(np.array([0.3]), np.array([False]), 4)) == (0.5, 0.0)
    assert best_threshold(Counted(np.array([0.3]), np.array([True]), 1)) == (pytest.approx(0.15), 1.0)


def test_confusion_counts_missed_and_superfluous():
    counts = confusion([FOUND], 2, 0.65)
    assert counts.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert confusion([FOUND], 2, 0.95).tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_mistakes_of_an_image():
    perfect = image(TRUE[:2, :4], [0.9, 0.9], [0, 1])
    assert mistakes(perfect, 0.5) == 0
    assert mistakes(image([], [], []), 0.5) == 1
    assert mistakes(image([], [], [], TRUE[:0]), 0.5) == 0
