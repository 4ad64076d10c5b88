"""What shapes tell, and what they are asked for in vain."""

from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.shapes import square_grid, usual_heads

FILE = Path("some.pth")


@pytest.mark.parametrize("side", [1, 7, 14, 37])
def test_a_square_is_found(side):
    assert square_grid(side * side, FILE) == (side, side)


def test_a_rectangle_is_not_guessed():
    with pytest.raises(CheckpointError, match=r"some\.pth: 24 positions are no square"):
        square_grid(24, FILE)


@pytest.mark.parametrize(("dim", "heads"), [(192, 3), (384, 6), (768, 12), (1024, 16)])
def test_usual_widths_have_their_published_heads(dim, heads):
    assert usual_heads(dim, FILE) == heads


def test_a_width_with_two_usual_numbers_of_heads_needs_to_know_more():
    assert usual_heads(1280, FILE, rotary=False) == 16
    assert usual_heads(1280, FILE, rotary=True) == 20
    with pytest.raises(CheckpointError, match="name the model"):
        usual_heads(1280, FILE)


def test_an_unusual_width_is_not_guessed():
    with pytest.raises(CheckpointError, match="how many heads a width of 100 has"):
        usual_heads(100, FILE)
