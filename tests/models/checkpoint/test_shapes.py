"""What shapes tell, and what they are asked for in vain."""

from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.models.checkpoint.shapes import grid_of, patches_of, relative_grid, usual_heads

FILE = Path("some.pth")


@pytest.mark.parametrize("side", [1, 7, 14, 37])
def test_a_square_is_found(side):
    assert grid_of(side * side, FILE) == (side, side)


def test_a_rectangle_is_not_guessed():
    with pytest.raises(CheckpointError, match="image_size"):
        grid_of(24, FILE)
    with pytest.raises(CheckpointError, match="5 x 5"):
        grid_of(24, FILE, said=(5, 5))


def test_a_rectangle_is_what_the_caller_says():
    assert grid_of(24, FILE, said=(4, 6)) == (4, 6)
    assert grid_of(36, FILE, said=(4, 9)) == (6, 6)  # a square that is resampled
    assert relative_grid(7 * 11, FILE, said=(4, 6)) == (4, 6)
    assert relative_grid(49, FILE) == (4, 4)
    assert patches_of((64, 96), (16, 16)) == (4, 6)
    assert patches_of(None, (16, 16)) is None


@pytest.mark.parametrize(("dim", "heads"), [(192, 3), (384, 6), (768, 12), (1024, 16)])
def test_usual_widths_have_their_published_heads(dim, heads):
    assert usual_heads(dim, FILE) == heads


def test_a_width_with_two_usual_numbers_of_heads_needs_to_know_more():
    assert usual_heads(1280, FILE, rotary=False) == 16
    assert usual_heads(1280, FILE, rotary=True) == 20
    with pytest.raises(CheckpointError, match="name the model"):
        usual_heads(1280, FILE)


def test_an_unusual_width_is_not_guessed():
    with pytest.raises(CheckpointError, match="heads"):
        usual_heads(100, FILE)
