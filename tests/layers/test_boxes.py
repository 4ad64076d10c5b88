"""Boxes: corners and centres, overlap against single boxes by hand and transformers' functions."""

import support.peers  # noqa: F401  (makes transformers loadable)
import torch
from transformers.loss.loss_for_object_detection import box_iou, generalized_box_iou

from vitrail.layers.boxes import area, generalised_iou, inverse_sigmoid, iou, precise, to_centres, to_corners


def random_boxes(count):
    first = torch.rand(count, 2, dtype=torch.float64)
    return torch.cat([first, first + torch.rand(count, 2, dtype=torch.float64)], dim=1)


def test_corners_and_centres_are_inverse():
    boxes = random_boxes(20)
    torch.testing.assert_close(to_corners(to_centres(boxes)), boxes)
    assert to_centres(torch.tensor([1.0, 2.0, 5.0, 4.0])).tolist() == [3.0, 3.0, 4.0, 2.0]


def test_overlap_by_hand():
    first, second = torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 3.0, 3.0])
    assert float(iou(first, second)) == torch.tensor(1 / 7)
    torch.testing.assert_close(generalised_iou(first, second), torch.tensor(1 / 7 - 2 / 9))


def test_overlap_is_that_of_transformers():
    first, second = random_boxes(12), random_boxes(9)
    torch.testing.assert_close(iou(first[:, None], second[None]), box_iou(first, second)[0])
    torch.testing.assert_close(generalised_iou(first[:, None], second[None]), generalized_box_iou(first, second))


def test_empty_boxes_have_no_overlap_and_finite_gradients():
    empty = torch.zeros(1, 4, requires_grad=True)
    value = generalised_iou(empty, torch.zeros(1, 4))
    value.sum().backward()
    assert area(empty).tolist() == [0]
    assert iou(empty, torch.zeros(1, 4)).tolist() == [0]
    assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(empty.grad).all())


def test_inverse_sigmoid_stays_finite():
    shares = torch.tensor([-1.0, 0.0, 0.25, 1.0, 2.0])
    logits = inverse_sigmoid(shares)
    assert bool(torch.isfinite(logits).all())
    torch.testing.assert_close(logits.sigmoid()[2], shares[2])


def test_precise_keeps_double():
    assert precise(torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32
    assert precise(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
