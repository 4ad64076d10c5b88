"""Natural order: numbers in names count as numbers."""

from vitrail.data.natural import natural


def test_natural_order():
    assert sorted(["b10", "b2", "a", "B1", "b02"], key=natural) == ["a", "B1", "b02", "b2", "b10"]
    assert sorted(["10", "9", "2", "x"], key=natural) == ["x", "2", "9", "10"]
