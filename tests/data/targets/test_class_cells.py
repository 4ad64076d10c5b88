"""Cells of tables: names of classes, and columns of 0 and 1."""

from pathlib import Path

import pytest

from vitrail.data.targets import Column
from vitrail.data.targets.class_cells import LIST, cell_text, one_hot_columns, one_hot_marks
from vitrail.errors import DataError


def column(*cells, name="label") -> Column:
    return Column(Path("t.csv"), name, cells, range(2, 2 + len(cells)))


def test_names_are_texts_or_numbers_from_0():
    assert [cell_text(column(cell), 0, cell) for cell in ("cat", 0, 12, "-a", "1.5")] == ["cat", "0", "12", "-a", "1.5"]


@pytest.mark.parametrize("cell", ["", None, True, 1.5, -1, "-3", ["a"]])
def test_other_cells_are_refused_with_their_line(cell):
    with pytest.raises(DataError, match=r"t\.csv, line 2, column 'label'"):
        cell_text(column(cell), 0, cell)


@pytest.mark.parametrize(
    ("text", "is_list"),
    [
        ("['a']", True),
        ('["a", "b"]', True),
        ("('a',)", True),
        ("[]", True),
        ("[1 2]", True),
        ("[a]", False),
        ("a", False),
    ],
)
def test_lists_written_as_text(text, is_list):
    assert bool(LIST.fullmatch(text)) is is_list


def test_columns_of_0_and_1():
    columns = [column("0", 1, "true", name="red"), column("1.0", False, "0", name="round")]
    assert one_hot_columns(columns) == columns
    assert one_hot_marks(columns).tolist() == [[0, 1], [1, 0], [1, 0]]
    assert one_hot_columns([*columns, column("0", "1", "2")]) == []
    assert one_hot_columns([]) == []
    with pytest.raises(DataError, match=r"line 4.*'2'"):
        one_hot_marks([column("0", "1", "2")])
