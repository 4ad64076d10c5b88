"""Sizes of pictures whose ratio is kept, with the rounding of Hugging Face's processors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.own_size import Edges, Near, Within

SIDES = st.integers(8, 3000)


@pytest.mark.parametrize(
    ("own", "picture", "found"),
    [
        (Edges(shortest=800, longest=1333), (427, 640), (800, 1199)),
        (Edges(shortest=800, longest=1333), (300, 1000), (400, 1333)),
        (Edges(shortest=800, longest=1333), (1000, 300), (1333, 400)),
        (Edges(shortest=800, longest=1333), (800, 900), (800, 900)),
        (Edges(shortest=512), (100, 1000), (512, 5120)),
        (Edges(shortest=100, longest=100), (1, 5000), (1, 100)),
        (Within(height=640, width=480), (427, 640), (320, 480)),
        (Near(height=384, width=384, multiple=32), (427, 640), (384, 576)),
        (Near(height=384, width=384), (427, 640), (384, 576)),
        (Near(height=64, width=64, multiple=32), (10, 1000), (32, 64)),
    ],
)
def test_size_of_a_picture(own: Edges, picture: tuple[int, int], found: tuple[int, int]) -> None:
    assert own.of(*picture) == found


@given(SIDES, SIDES, st.integers(8, 900), st.integers(8, 1400))
def test_sides_of_a_picture(height: int, width: int, shortest: int, longest: int) -> None:
    longest = max(shortest, longest)
    rows, columns = Edges(shortest=shortest, longest=longest).of(height, width)
    assert 1 <= min(rows, columns) <= shortest
    assert max(rows, columns) <= longest or (rows, columns) == (height, width)
    assert Edges(shortest=shortest, longest=longest).of(width, height) == (columns, rows)


def test_a_multiple() -> None:
    near = Near(height=90, width=90, multiple=32)
    assert near.rounded(90) == 96
    assert near.rounded(3) == 32
