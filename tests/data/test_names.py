"""Names of classes that deserve a second look: found where they are, and silence where all is well."""

import pytest

from vitrail.data.names import alike, composed, misspelt, told_alike, told_unknown


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


CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog")


@pytest.mark.parametrize(
    ("name", "classes", "meant"),
    [
        ("plane", CIFAR, "airplane"),
        ("Birds", CIFAR, "bird"),
        ("DOG", CIFAR, "dog"),
        ("dgo", CIFAR, "dog"),
        ("car", CIFAR, None),
        ("cow", CIFAR, None),
        ("cat", ("Coat",), None),
        ("Coats", ("Coat",), "Coat"),
        ("automobil", CIFAR, "automobile"),
        ("deeer", (), None),
    ],
)
def test_a_slip_of_the_pen_is_told_from_another_word(name, classes, meant):
    assert misspelt(name, classes) == meant


def test_unknown_classes_are_named_with_those_that_are_known():
    told = told_unknown("photos", ["bird", "car", "plane"], CIFAR)
    assert "classes that are not among the 6 classes of the training data: 'car', 'plane' ('airplane'?);" in told
    assert told.endswith("not one of airplane, automobile, bird, cat, deer, dog")
    assert told_unknown("photos", ["cats"], CIFAR).startswith("photos has a class that is not among")
    assert "'cats' ('cat'?)" in told_unknown("photos", ["cats"], CIFAR)
    assert "'cats';" in told_unknown("photos", ["cat", "cats"], CIFAR), "cats cannot be cat, which is there as well"
    assert "'cats' ('cat'?), 'dogs' ('dog'?);" in told_unknown("photos", ["cats", "dogs"], CIFAR)
    assert "'cats', 'shirt';" in told_unknown("photos", ["cats", "shirt"], CIFAR), "these are other things altogether"
    assert told_unknown("photos", ["dog", "bird"], CIFAR) is None
