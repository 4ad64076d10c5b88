import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.explain.page.outline import outline_path


def test_the_outline_of_a_box_has_four_lines():
    part = torch.zeros(4, 8, dtype=torch.bool)
    part[1:3, 2:6] = True
    assert outline_path(part) == "M0.25 0.25H0.75M0.25 0.75H0.75M0.25 0.25V0.75M0.75 0.25V0.75"


def test_nothing_and_everything():
    assert not outline_path(torch.zeros(3, 3, dtype=torch.bool))
    assert outline_path(torch.ones(3, 3, dtype=torch.bool)) == "M0 0H1M0 1H1M0 0V1M1 0V1"


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=6))
def test_lines_are_as_long_as_the_edges(rows):
    part = torch.tensor(rows)
    height, width = part.shape
    length = 0.0
    for line in outline_path(part).split("M")[1:]:
        start, _, end = line.replace("H", "|").replace("V", "|").partition("|")
        x, y = map(float, start.split())
        length += (float(end) - x) * width if "H" in line else (float(end) - y) * height
    padded = torch.nn.functional.pad(part.int(), (1, 1, 1, 1))
    assert round(length) == int(padded.diff(dim=0).abs().sum() + padded.diff(dim=1).abs().sum())
