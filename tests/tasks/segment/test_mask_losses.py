"""Losses of class maps: torch's cross-entropy, Dice and Lovasz by hand, ignored pixels, gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from vitrail.tasks.segment.mask_losses import cross_entropy, dice, lovasz


def made(classes=3, ignored=True):
    torch.manual_seed(0)
    mask = torch.randint(classes, (2, 4, 5))
    if ignored:
        mask[0, :2] = 255
    return torch.randn(2, classes, 4, 5, dtype=torch.float64), mask


def perfect(mask, classes=3):
    hot = F.one_hot(mask.masked_fill(mask == 255, 0), classes).movedim(3, 1)
    return (hot * 60.0 - 30.0).double()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)])
def test_cross_entropy_is_torchs(weights):
    logits, mask = made()
    torch.testing.assert_close(
        cross_entropy(logits, mask, weights), F.cross_entropy(logits, mask, weights, ignore_index=255)
    )


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)])
def test_the_hardest_pixels_alone(weights):
    logits, mask = made()
    each = F.cross_entropy(logits, mask, weights, ignore_index=255, reduction="none").flatten()
    worst = each.argsort(descending=True)[:10]  # a quarter of 40
    weight = torch.ones(10) if weights is None else weights[mask.flatten()[worst]]
    expected = each[worst].sum() / weight.sum()
    torch.testing.assert_close(cross_entropy(logits, mask, weights, hardest=0.25), expected)
    torch.testing.assert_close(cross_entropy(logits, mask, weights, hardest=1.0), cross_entropy(logits, mask, weights))


def hardest(logits, mask):
    return cross_entropy(logits, mask, hardest=0.9)


@pytest.mark.parametrize("loss", [cross_entropy, hardest, dice, lovasz])
def test_ignored_pixels_do_not_count(loss):
    logits, mask = made()
    logits.requires_grad_()
    before = loss(logits, mask)
    (gradient,) = torch.autograd.grad(before, logits)
    assert not gradient[0, :, :2].any()
    assert bool(torch.isfinite(gradient).all())
    changed = logits.detach().clone()
    changed[0, :, :2] = 50.0
    torch.testing.assert_close(loss(changed, mask), before.detach())


@pytest.mark.parametrize("loss", [cross_entropy, hardest, dice, lovasz])
def test_the_truth_costs_nothing_and_no_truth_neither(loss):
    _, mask = made()
    assert loss(perfect(mask), mask).item() == pytest.approx(0, abs=1e-9)
    assert loss(perfect(mask), torch.full_like(mask, 255)).item() == 0


def test_dice_by_hand():
    mask = torch.tensor([[[0, 0], [0, 1]]])
    said = torch.tensor([[[0, 0], [1, 1]]])
    expected = ((1 - 4 / 5) + (1 - 2 / 3)) / 2
    assert dice(perfect(said, 2), mask).item() == pytest.approx(expected)


def test_lovasz_of_certain_answers_is_one_less_iou():
    for said in itertools.product((0, 1), repeat=4):
        mask, found = torch.tensor([[[0, 0], [0, 1]]]), torch.tensor(said).view(1, 2, 2)
        iou = [((mask == k) & (found == k)).sum() / ((mask == k) | (found == k)).sum() for k in (0, 1)]
        assert lovasz(perfect(found, 2), mask).item() == pytest.approx(1 - float(sum(iou)) / 2)
