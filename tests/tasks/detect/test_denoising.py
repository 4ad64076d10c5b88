"""Noised boxes: near ones overlap the truth, far ones do not count, shapes do not depend on the boxes."""

import torch

from vitrail.layers.boxes import iou, to_corners
from vitrail.tasks.detect.denoising import noised
from vitrail.tasks.detect.matching import Truth


def truth_of(counts, most=5):
    valid = torch.stack([torch.arange(most) < count for count in counts]).flip(1)  # real boxes last
    boxes = torch.where(valid[..., None], torch.tensor([0.5, 0.5, 0.3, 0.2]), torch.zeros(4))
    return Truth(valid.long() * 2, boxes, valid, torch.ones(len(counts), dtype=torch.bool))


def test_near_and_far():
    torch.manual_seed(0)
    found = noised(truth_of((5, 2)), 20, 3, label_noise=0.5, box_noise=1.0)
    assert found.groups == 4
    assert found.boxes.shape == (2, 40, 4)
    overlap = iou(to_corners(found.boxes), to_corners(found.true_boxes))
    near, far = found.valid & found.positive, found.valid & ~found.positive
    assert overlap[near].mean() > overlap[far].mean() + 0.1
    assert bool((found.true_labels[found.valid] == 2).all())
    wrong = (found.labels != found.true_labels)[found.valid]
    assert 0.02 < float(wrong.float().mean()) < 0.4
    assert bool(((found.boxes >= 0) & (found.boxes <= 1)).all())


def test_real_boxes_come_first():
    found = noised(truth_of((5, 2)), 3, 3, label_noise=0.0, box_noise=0.4)
    assert found.boxes.shape == (2, 6, 4)
    assert found.valid.tolist() == [[True] * 6, [True, True, False] * 2]


def test_an_image_without_boxes():
    found = noised(truth_of((0, 1)), 10, 3, label_noise=0.5, box_noise=1.0)
    assert not found.valid[0].any()
    unknown = truth_of((2,))._replace(known=torch.tensor([False]))
    assert not noised(unknown, 10, 3, label_noise=0.5, box_noise=1.0).valid.any()
