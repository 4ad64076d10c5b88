"""Cells that a spreadsheet would run get an apostrophe, and lose it again when they are read."""

import random

import pytest

from vitrail.safe_cells import plain_cell, safe_cell

FULL_WIDTH = "\uff1d\uff0b\uff0d\uff20"  # = + - @
SIGNS = ["=1+1", "+1+1", "-a", "@a", "\ta", "\ra", "\na", "-", "'=a", "''@"]


@pytest.mark.parametrize("text", [*SIGNS, *FULL_WIDTH, f"'{FULL_WIDTH}", "-\u0665", "+\u0661.5"])
def test_formulas_begin_with_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["a", "", "'a", "-5", "+.5", "-1e-3", "-inf", "[1]", -0.5, 3, None])
def test_numbers_and_other_texts_stay(value: object) -> None:
    assert safe_cell(value) is value


def test_every_text_is_read_back() -> None:
    draw = random.Random(0)
    for _ in range(5000):
        text = "".join(draw.choices(f"'=+-@\t\r\n1.e a{FULL_WIDTH}", k=draw.randrange(6)))
        assert plain_cell(safe_cell(text)) == text
