"""Cells that a spreadsheet would run get an apostrophe, and lose it again when they are read."""

import random

import pytest

from vitrail.deploy.bulk.safe_cells import plain_cell, safe_cell


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-a", "@a", "\ta", "\ra", "\na", "-", "'=a", "''@"])
def test_formulas_begin_with_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["a", "", "'a", "-5", "+.5", "-1e-3", "-inf", "[1]", -0.5, 3, None])
def test_numbers_and_other_texts_stay(value: object) -> None:
    assert safe_cell(value) is value


def test_every_text_is_read_back() -> None:
    draw = random.Random(0)
    for _ in range(5000):
        text = "".join(draw.choices("'=+-@\t\r\n1.e a", k=draw.randrange(6)))
        assert plain_cell(safe_cell(text)) == text
