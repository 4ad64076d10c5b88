"""Names of classes that deserve a second look: found where they are, and silence where all is well."""

import pytest

from vitrail.data.names import alike, composed, listed, told_alike


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        (("Red", "blue", "red"), [("Red", "red")]),
        (("red", " red", "polar bear", "Polar  bear"), [("red", " red"), ("polar bear", "Polar  bear")]),
        (("red", "redder", "polar bear", "polarbear"), []),
    ],
)
def test_names_that_differ_by_case_or_blanks(classes, found):
    assert alike(classes) == found
    assert len(list(told_alike(classes))) == bool(found)


def test_names_made_of_other_names():
    assert composed(["red", "red short", "short", "red dress", "red red"]) == ["red short"]


def test_the_first_few_are_listed():
    assert listed("abc") == "a, b, c"
    assert listed("abcde") == "a, b, c and 2 more"
