import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.lab.long_range_pictures import hidden_core, marks, paired_halves

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def read(images: Tensor) -> Tensor:
    """Which mark is in each cell, B h w: 0 for none, from the correlation with each of them."""
    cells = F.unfold(images, 4, stride=4).transpose(1, 2)  # B cells 16
    shown = marks(CPU).flatten(1)
    fit = torch.stack([(cells - 0.2 - 0.6 * mark).square().mean(dim=2) for mark in [torch.zeros(16), *shown]], dim=2)
    side = images.shape[2] // 4
    return fit.argmin(dim=2).view(-1, side, side)


@pytest.mark.parametrize("distance", [1, 4])
def test_the_class_is_the_number_of_rows_with_both_halves(distance: int) -> None:
    images, labels = paired_halves(200, distance, side=6, device=CPU)
    cells = read(images)
    left, right = (cells == 1).any(dim=2), (cells == 2).any(dim=2)
    assert ((left & right).sum(dim=1) == labels).float().mean() > 0.97  # noise hides a mark now and then
    assert (left.sum(dim=1) == 3).float().mean() > 0.97
    assert (right.sum(dim=1) == 3).float().mean() > 0.97
    both = left & right
    apart = (cells == 2).float().argmax(dim=2) - (cells == 1).float().argmax(dim=2)
    assert (apart[both] == distance).float().mean() > 0.97
    assert labels.bincount(minlength=4).min() > 30


def test_columns_of_halves_say_nothing_of_the_class() -> None:
    images, labels = paired_halves(4000, 4, side=6, device=CPU)
    means = torch.stack([images[labels == label].mean(dim=(0, 1, 2)) for label in range(4)])  # K W
    assert (means - means.mean(dim=0)).abs().max() < 0.01


def test_a_hidden_core_leaves_two_marks_that_are_equal_or_not() -> None:
    images, labels = hidden_core(300, 4, hidden=1.0, side=6, device=CPU)
    cells = read(images).flatten(1)
    rings, crosses = (cells == 3).sum(dim=1), (cells == 4).sum(dim=1)
    assert ((rings + crosses) == 2).float().mean() > 0.97
    assert (((rings == 1) & (crosses == 1)) == (labels == 0)).float().mean() > 0.97
    assert abs(float((rings[labels == 1] == 2).float().mean()) - 0.5) < 0.1
    shown, classes = hidden_core(300, 4, hidden=0.0, side=6, device=CPU)
    cells = read(shown).flatten(1)
    assert ((cells == 2).any(dim=1) == (classes == 1)).float().mean() > 0.97
