"""From where on classes are called uneven."""

from vitrail.data.targets.class_balance import skew_of


def test_uneven_from_twice_as_many_on() -> None:
    assert skew_of(("a", "b"), (100, 51)) is None
    found = skew_of(("a", "b", "none"), (100, 50, 0))
    assert found is not None
    assert (found.frequent, found.most, found.rare, found.least, found.ratio) == ("a", 100, "b", 50, 2.0)


def test_one_class_is_not_uneven() -> None:
    assert skew_of(("a", "b"), (100, 0)) is None
