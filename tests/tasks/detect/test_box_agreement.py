"""The same boxes in another order are the same answer; a lost, moved or renamed box is not."""

import numpy as np
import pytest

from vitrail.tasks.detect.box_agreement import compared

BOXES = np.array([[[0, 0, 10, 10], [20, 20, 40, 30], [5, 5, 6, 6]]], dtype=float)
GIVEN = {"boxes": BOXES, "scores": np.array([[0.9, 0.8, 0.1]]), "labels": np.array([[0.0, 1.0, 1.0]])}


def changed(**values):
    return GIVEN | {name: np.array([value], dtype=float) for name, value in values.items()}


def test_another_order_is_the_same():
    order = [1, 0, 2]
    other = {name: values[:, order] for name, values in GIVEN.items()}
    found = compared(GIVEN, other, 0.5)
    assert found.same.tolist() == [True]
    assert (found.error, found.cosine) == (0, pytest.approx(1))


def test_a_small_shift_is_the_same_with_an_error():
    found = compared(GIVEN, GIVEN | {"boxes": BOXES + 0.4}, 0.5)
    assert found.same.tolist() == [True]
    assert found.error == pytest.approx(0.01)


@pytest.mark.parametrize(
    "other",
    [
        changed(scores=[0.9, 0.2, 0.1]),
        changed(labels=[0, 0, 1]),
        changed(scores=[0.9, 0.8, 0.7]),
        GIVEN | {"boxes": BOXES + np.array([0, 15, 0])[None, :, None]},
    ],
    ids=["score", "class", "surplus", "place"],
)
def test_other_answers(other):
    assert compared(GIVEN, other, 0.5).same.tolist() == [False]


def test_a_score_at_the_threshold_may_be_on_either_side():
    assert compared(changed(scores=[0.9, 0.51, 0.1]), changed(scores=[0.9, 0.49, 0.1]), 0.5).same.tolist() == [True]


def test_images_without_boxes():
    assert compared(GIVEN, GIVEN, 0.99).same.tolist() == [True]
    empty = {name: values[:0] for name, values in GIVEN.items()}
    assert compared(empty, empty, 0.5) == (0.0, 1.0, pytest.approx(np.zeros(0)), 1.0)


def test_the_share_of_boxes():
    assert compared(GIVEN, GIVEN, 0.5).boxes == 1
    assert compared(GIVEN, changed(scores=[0.9, 0.2, 0.1]), 0.5).boxes == 0.5
    assert compared(GIVEN, changed(scores=[0.9, 0.8, 0.7]), 0.5).boxes == pytest.approx(2 / 3)  # one is surplus
