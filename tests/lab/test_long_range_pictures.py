import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.lab.long_range_pictures import Match, hidden_core, marks, paired_halves

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def read(images: Tensor) -> Tensor:
    """Which mark is in each cell, B h w: 0 for none, from the distance to each of them."""
    cells = F.unfold(images, 4, stride=4).transpose(1, 2)  # B cells 16
    shown = [torch.zeros(16), *marks(CPU).flatten(1)]
    missed = torch.stack([(cells - 0.2 - 0.6 * mark).square().mean(dim=2) for mark in shown], dim=2)
    side = images.shape[2] // 4
    return missed.argmin(dim=2).view(-1, side, side)


def test_marks_are_equally_bright_and_equally_different() -> None:
    found = marks(CPU).flatten(1)
    assert (found.sum(dim=1) == 8).all()
    differ = (found[:, None] != found).sum(dim=2)
    assert (differ[~torch.eye(15, dtype=torch.bool)] == 8).all()


@pytest.mark.parametrize("match", ["mark", "row"])
def test_the_class_is_the_number_of_rows_with_both_halves(match: Match) -> None:
    images, classes = paired_halves(300, 4, match, side=6, device=CPU)
    cells = read(images)
    counts = (cells > 0).sum(dim=2)
    assert ((counts == 2).sum(dim=1) == classes).all()
    assert (counts.sum(dim=1) == 6).all()  # halves, whatever the class
    assert classes.bincount(minlength=4).min() > 50
    places = [row.nonzero().flatten() for row in cells[counts == 2]]
    assert all(int(right - left) == 4 for left, right in places)
    pairs = [row[row > 0].tolist() for row in cells[counts == 2]]
    assert all((one == other) if match == "mark" else (one, other) == (1, 2) for one, other in pairs)
    if match == "mark":  # another mark for each row
        for picture in cells[:50]:
            assert len(picture[picture > 0].unique()) == int((picture > 0).any(dim=1).sum())


def test_columns_of_halves_say_nothing_of_the_class() -> None:
    images, classes = paired_halves(4000, 4, "row", side=6, device=CPU)
    means = torch.stack([images[classes == one].mean(dim=(0, 1, 2)) for one in range(4)])  # K W
    assert (means - means.mean(dim=0)).abs().max() < 0.01


def test_a_hidden_core_leaves_two_marks_that_are_equal_or_not() -> None:
    images, classes = hidden_core(300, 4, hidden=1.0, side=6, device=CPU)
    cells = read(images).flatten(1)
    one, other = (cells == 3).sum(dim=1), (cells == 4).sum(dim=1)
    assert ((one + other) == 2).all()
    assert (((one == 1) & (other == 1)) == (classes == 0)).all()
    assert abs(float((one[classes == 1] == 2).float().mean()) - 0.5) < 0.1
    shown, classes = hidden_core(300, 4, hidden=0.0, side=6, device=CPU)
    assert ((read(shown).flatten(1) == 2).any(dim=1) == (classes == 1)).all()
