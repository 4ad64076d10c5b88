"""Natural order: numbers in names count as numbers."""

from vitrail.data.natural import natural


def test_natural_order():
    assert sorted(["b10", "b2", "a", "B1", "b02"], key=natural) == ["a", "B1", "b02", "b2", "b10"]
    assert sorted(["10", "9", "2", "x"], key=natural) == ["x", "2", "9", "10"]
    assert sorted(["1" * 5000, "9" * 4999, "0"], key=natural) == ["0", "9" * 4999, "1" * 5000]
