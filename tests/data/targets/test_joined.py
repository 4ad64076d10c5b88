"""Labels joined by another mark than |: found where they are, and no false alarm for names with commas."""

import pytest

from vitrail.data.targets.joined import joined_by, split_labels, with_marks

COLOURS = ["red", "green", "blue"]
CITIES = ["Paris, France", "Lyon, France", "Rome, Italy"]
DOGS = ["golden retriever", "labrador retriever", "bear", "polar bear"]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([*COLOURS, "red;blue"], ("red;blue", ";")),
        ([*COLOURS, "red, blue"], ("red, blue", ",")),
        ([*COLOURS, "red|green", "red;blue"], ("red;blue", ";")),  # one cell was overlooked
        (["red;blue", "blue;green", "green;red"], ("blue;green", ";")),  # none stands alone
        (["red,blue", "blue,green", "green,red"], ("blue,green", ",")),
        (["3,17", "3", "17"], ("3,17", ",")),
        ([*COLOURS, "red/blue"], ("red/blue", "/")),
        (["T-shirt/top", "Trouser", "Shirt"], None),
        (["clear road", "clear", "haze road", "haze water", "clear water"], ("clear road", " ")),
        (COLOURS, None),
        ([*COLOURS, "red|blue", ""], None),
        (CITIES, None),
        ([*CITIES, "Paris, Texas", "Austin, Texas|Paris, France"], None),  # | is in use: they know it
        (["red;blue"] * 3, None),  # nothing tells that these are two
        ([*DOGS, "golden eagle"], None),
        (["new york", "york|new", "york"], None),
        ([], None),
    ],
)
def test_several_labels_a_cell(cells, found):
    assert joined_by(cells, several=True) == found


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([*COLOURS, "red|blue"], ("red|blue", "|")),
        ([*COLOURS, "red;blue"], ("red;blue", ";")),
        ([*COLOURS, "red,blue"], ("red,blue", ",")),
        ([*COLOURS, "red/blue"], ("red/blue", "/")),
        (["T-shirt/top", "Trouser", "Shirt"], None),
        (["day/dry", "day/wet", "night/dry", "night/wet"], None),  # folders are written so
        (["red|blue", "blue|green", "green|red"], ("blue|green", "|")),
        (["red;blue", "blue;green", "green;red"], ("blue;green", ";")),
        (["Smith, John", "Smith, Anna", "Jones, John", "Jones, Anna"], None),
        (["Paris, France", "Paris", "Rome, Italy"], None),
        (["orange", "juice", "orange juice"], None),
        (["blade", "vane", "blade, vane", "tench, Tinca tinca", "crane, bird"], None),  # the others are names
        (["a|b", "c"], None),
        (DOGS, None),
    ],
)
def test_one_label_a_cell(cells, found):
    assert joined_by(cells, several=False) == found


def test_what_carries_a_mark():
    assert with_marks(["a", "b, c", "d|e", "T-shirt/top"], several=False) == ["b, c", "d|e"]
    assert with_marks(["a", "b;c"], several=True) == ["b;c"]
    assert split_labels(" a | |b c|") == ["a", "b c"]
