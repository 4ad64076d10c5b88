"""The loss of a set of masks: the truth costs little, every class is matched once, ignored pixels do not count."""

import torch
import torch.nn.functional as F

from vitrail.models.heads.eomt import MaskQueries
from vitrail.tasks.segment.mask_set_loss import mask_set_loss


def truth():
    mask = torch.zeros(2, 8, 8, dtype=torch.int64)
    mask[0, :4] = 1
    mask[1, :, :2] = 2
    mask[1, 7] = 255
    return mask


def perfect(mask, order=(0, 1, 2)):
    """A query for each class that there is, at half the resolution; two that say nothing."""
    small = mask[:, ::2, ::2]
    masks, classes = torch.full((1, 2, 5, 4, 4), -20.0), torch.full((1, 2, 5, 4), 0.0)
    classes[..., 3] = 20.0
    for image in range(2):
        for query, label in enumerate(order):
            if (mask[image] == label).any():
                masks[0, image, query] = torch.where(small[image] == label, 20.0, -20.0)
                classes[0, image, query] = F.one_hot(torch.tensor(label), 4) * 20.0
    return MaskQueries(classes, masks)


def test_the_truth_costs_little_in_any_order():
    mask = truth()
    for order in ((0, 1, 2), (2, 0, 1)):
        assert mask_set_loss(perfect(mask, order), mask).item() < 1e-3
    wrong = mask.clone()
    wrong[0] = 2
    assert mask_set_loss(perfect(mask), wrong).item() > 1


def test_ignored_pixels_do_not_count():
    torch.manual_seed(0)
    mask = truth()
    mask[0, :, :4] = 255
    masks = torch.randn(2, 2, 5, 4, 4, requires_grad=True)
    found = MaskQueries(torch.randn(2, 2, 5, 4), masks)
    (gradient,) = torch.autograd.grad(mask_set_loss(found, mask), masks)
    assert not gradient[:, 0, :, :, :2].any()
    assert bool(torch.isfinite(gradient).all())


def test_an_image_without_a_mask_teaches_nothing():
    torch.manual_seed(0)
    classes = torch.randn(1, 2, 5, 4, requires_grad=True)
    mask = truth()
    mask[1] = 255
    loss = mask_set_loss(MaskQueries(classes, torch.randn(1, 2, 5, 4, 4)), mask)
    (gradient,) = torch.autograd.grad(loss, classes)
    assert not gradient[:, 1].any()
    assert gradient[:, 0].any()
